"""A vision transformer with any mixer.

Source: the Translution paper, section 4.1 and Table 1; chapter "What it costs".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice, check_sizes
from translution_lib.models.blocks import (
    ABSOLUTE,
    architecture,
    check_flag,
    joined_options,
    make_blocks,
    mixer_names,
    run_blocks,
)
from translution_lib.models.embedding import EMBEDDINGS, sinusoids
from translution_lib.relations import Relations, offsets, pairs, place_cls
from translution_lib.sharing import bucketed

ENCODINGS = ("relative", "placed", "pairs")


@dataclass(frozen=True)
class ViTConfig:
    """Everything that determines a ViT; the fields are the arguments of :class:`ViT`."""

    image_size: int
    patch_size: int
    channels: int
    classes: int
    dim: int
    depth: int
    heads: int
    ff: int
    mixer: tuple[str, ...]
    pool: str = "cls"
    absolute: bool = False
    encoding: str = "relative"
    options: dict = field(default_factory=dict)
    checkpoint: bool = False
    clip_offsets: int | None = None
    bucket_offsets: int | None = None
    bucket_by: str = "axis"
    window: int | None = None
    embedding: str = "learned"

    @property
    def grid(self) -> int:
        """Patches per side."""
        return self.image_size // self.patch_size

    @property
    def tokens(self) -> int:
        """Number of tokens, the CLS token included."""
        return self.grid ** 2 + (self.pool == "cls")

    @property
    def normalised(self) -> int:
        """Numbers of a patch under its first norm: none if a patch is one number, of which a norm would leave zero."""
        pixels = self.channels * self.patch_size ** 2
        return pixels if pixels > 1 else 0

    def relations(self) -> Relations:
        """Return the relation table that all layers share."""
        if self.encoding == "pairs":
            return pairs(self.tokens)
        table = offsets((self.grid, self.grid), cls=self.pool == "cls", window=self.window, clip=self.clip_offsets)
        if self.bucket_offsets is not None:
            table = bucketed(table, self.bucket_offsets, by=self.bucket_by)
        return place_cls(table) if self.encoding == "placed" else table


class ViT(nn.Module):
    """Vision transformer: patches, a stack of blocks, a linear read-out of the CLS token or of the mean.

    Args:
        image_size, patch_size: sides in pixels; the patch size divides the image size.
        channels, classes: channels of the image, number of classes.
        dim, depth, heads, ff: see :class:`Architecture`.
        mixer: a name of ``MIXERS``, or one name per layer for a hybrid stack.
        pool: "cls" (a learned CLS token is read out) or "mean" (no CLS token).
        absolute: whether an embedding of every place is added once; by default only where a mixer is
            "absolute", "absolute-translution" or "performer-absolute".
        encoding: "relative" (one relation per offset), "placed" (also one for CLS and each patch, each way: chapter
            "The value-only preprint") or "pairs" (one per pair: Table 5's absolute ablation).
        checkpoint: keep the input of every block alone while training, and compute the block again in backward: the
            same outputs and gradients, less memory, one more forward pass.
        clip_offsets: offsets farther than so many patches along an axis share the relation at that distance; by default
            every offset has its own.
        bucket_offsets: offsets share relations by so many logarithmic buckets of their distance, T5's
            (:func:`~translution_lib.bucketed`); by default every offset has its own.
        bucket_by: "axis" (buckets of each component of an offset, with its sign) or "radius" (of max|δ|, without a
            direction).
        window: a patch attends to no patch more than so many rows or columns away; CLS is never masked.
        embedding: the embedding of places, where there is one: "learned", or "sinusoidal" (fixed, CLS at zero).
        options: options of the mixers by their names, for a hybrid stack: {"riemann": {"form": "inner"}}.
        flat: further options of the mixer, such as ``relative_dim=8``.

    Raises:
        ValueError: sizes that do not fit, an unknown mixer, pool, encoding or embedding, sinusoids where no embedding
            is added, offsets to clip where relations are pairs, offsets to clip and to put in buckets, a rule for
            buckets where there are none, a place for CLS where there is none, options that no layer knows or that
            two different layers of a hybrid stack share.

    Label: thm-equivariance-patches, thm-static-last, thm-preprint-last, thm-preprint-blind, thm-performers-bag,
    thm-cifar-symmetry.
    """

    def __init__(self, image_size: int, patch_size: int, channels: int, classes: int, dim: int, depth: int, heads: int,
                 ff: int, mixer: str | Sequence[str] = "translution", pool: str = "cls", absolute: bool | None = None,
                 encoding: str = "relative", checkpoint: bool = False, clip_offsets: int | None = None,
                 bucket_offsets: int | None = None, bucket_by: str = "axis", window: int | None = None,
                 embedding: str = "learned", options: Mapping[str, Mapping] | None = None, **flat) -> None:
        super().__init__()
        check_sizes(image_size=image_size, patch_size=patch_size, channels=channels, classes=classes, depth=depth)
        if image_size % patch_size:
            raise ValueError(f"patch_size must divide image_size = {image_size}, got {patch_size}")
        check_choice("pool", pool, ("cls", "mean"))
        check_choice("encoding", encoding, ENCODINGS)
        check_choice("embedding", embedding, EMBEDDINGS)
        check_flag("checkpoint", checkpoint)
        _check_sharing(encoding, clip_offsets=clip_offsets, bucket_offsets=bucket_offsets, window=window)
        if bucket_offsets is None and bucket_by != "axis":
            raise ValueError(f"bucket_by must be 'axis' where there are no buckets, got {bucket_by!r}")
        if encoding == "placed" and pool != "cls":
            raise ValueError(f'encoding "placed" needs pool "cls", got {pool!r}')
        names, options = mixer_names(mixer, depth), joined_options(options, flat)
        absolute = bool(ABSOLUTE.keys() & set(names)) if absolute is None else absolute
        if embedding != "learned" and not absolute:
            raise ValueError(f"embedding must be 'learned' where no embedding is added, got {embedding!r}")
        self.config = ViTConfig(image_size, patch_size, channels, classes, dim, depth, heads, ff, names, pool,
                                absolute, encoding, options, checkpoint, clip_offsets, bucket_offsets, bucket_by,
                                window, embedding)
        self.relations = self.config.relations()
        pixels = channels * patch_size ** 2
        first = nn.LayerNorm(pixels) if self.config.normalised else nn.Identity()
        self.patches = nn.Sequential(first, nn.Linear(pixels, dim), nn.LayerNorm(dim))
        self.cls = nn.Parameter(torch.randn(dim)) if pool == "cls" else None
        self._add_embedding()
        self.blocks = make_blocks(names, self.relations, dim, heads, ff, options)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def _add_embedding(self) -> None:
        """Set ``position``: None, a parameter, or a fixed table, zero for CLS."""
        c = self.config
        if c.embedding == "sinusoidal":
            side = torch.arange(c.grid, dtype=torch.float64, device="cpu")
            table = sinusoids(torch.cartesian_prod(side, side), c.dim)
            table = nn.functional.pad(table, (0, 0, int(c.pool == "cls"), 0))
            self.register_buffer("position", table.to(torch.get_default_dtype()), persistent=False)
        else:
            self.position = nn.Parameter(torch.randn(c.tokens, c.dim)) if c.absolute else None

    @classmethod
    def named(cls, name: str, *, mixer: str | Sequence[str] = "translution", image_size: int = 224, channels: int = 3,
              classes: int = 1000, **options) -> "ViT":
        """Return an architecture of Table 1 with a patch size, such as "A/12" or "B/56"."""
        letter, _, patch = str(name).partition("/")
        if not patch.isdigit():
            raise ValueError(f'name must be a letter and a patch size such as "A/12", got {name!r}')
        size = architecture(letter)
        return cls(image_size, int(patch), channels, classes, size.dim, size.depth, size.heads, size.ff, mixer,
                   **options)

    def tokens(self, images: Float[Tensor, "b ch height width"]) -> Float[Tensor, "b n c"]:
        """Return the tokens that enter the first block: embedded patches, CLS first, places added if absolute."""
        c = self.config
        if images.ndim != 4 or images.shape[1:] != (c.channels, c.image_size, c.image_size):
            raise ValueError(f"images must have the shape (batch, {c.channels}, {c.image_size}, {c.image_size}), "
                             f"got {tuple(images.shape)}")
        x = self.patches(rearrange(images, "b ch (y u) (x v) -> b (y x) (u v ch)", u=c.patch_size, v=c.patch_size))
        if self.cls is not None:
            x = torch.cat([self.cls.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
        return x if self.position is None else x + self.position.to(x.device)

    def forward(self, images: Float[Tensor, "b ch height width"],
                mask: Tensor | None = None) -> Float[Tensor, "b classes"]:
        """Return the logits of the classes.

        ``mask`` is True where a token exists (b n, CLS first), or where a query may attend to a key (b n n).
        """
        x = run_blocks(self.blocks, self.tokens(images), self.config.checkpoint, mask)
        if self.cls is not None:
            x = x[:, 0]
        elif mask is not None and mask.ndim == 2:
            x = x.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        else:
            x = x.mean(dim=1)
        return self.head(self.norm(x))


def _check_sharing(encoding: str, **rules: int | None) -> None:
    """Refuse a rule about offsets where relations are pairs, and two rules of sharing at once."""
    given = {name: rule for name, rule in rules.items() if rule is not None}
    if encoding == "pairs" and given:
        name, rule = next(iter(given.items()))
        raise ValueError(f'{name} must be None where encoding is "pairs", got {rule}')
    if {"clip_offsets", "bucket_offsets"} <= given.keys():
        raise ValueError(f"bucket_offsets must be None where offsets are clipped, got {given['bucket_offsets']}")

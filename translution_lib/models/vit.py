"""A vision transformer with any mixer.

Source: the Translution paper, section 4.1 and Table 1; chapter "What it costs".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

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
    resized,
    run_blocks,
)
from translution_lib.models.embedding import EMBEDDINGS, sinusoids
from translution_lib.relations import Relations, grid, offsets, pairs, place_cls
from translution_lib.sharing import bucketed

ENCODINGS = ("relative", "placed", "pairs")


@dataclass(frozen=True)
class ViTConfig:
    """Everything that determines a ViT; the fields are the arguments of :class:`ViT`."""

    image_size: int | tuple[int, int]
    patch_size: int | tuple[int, int]
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
    bucket_distance: int | None = None
    embedding_std: int | float = 1.0
    embedding_trains: bool | None = None

    @property
    def fixed(self) -> bool:
        """Whether the embedding is no parameter: sinusoids that stay as they are."""
        return self.absolute and self.embedding == "sinusoidal" and not self.embedding_trains

    @property
    def image(self) -> tuple[int, int, int]:
        """The shape of an image: channels, rows and columns of pixels."""
        return self.channels, *two("image_size", self.image_size)

    @property
    def patch(self) -> tuple[int, int, int]:
        """The shape of a patch: channels, rows and columns of pixels."""
        return self.channels, *two("patch_size", self.patch_size)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = (side // part for side, part in zip(self.image[1:], self.patch[1:], strict=True))
        return rows, columns

    @property
    def tokens(self) -> int:
        """Number of tokens, the CLS token included."""
        return prod(self.grid) + (self.pool == "cls")

    @property
    def normalised(self) -> int:
        """Numbers of a patch under its first norm: none if a patch is one number, of which a norm would leave zero."""
        pixels = prod(self.patch)
        return pixels if pixels > 1 else 0

    def relations(self) -> Relations:
        """Return the relation table that all layers share."""
        if self.encoding == "pairs":
            return pairs(self.tokens)
        table = offsets(self.grid, cls=self.pool == "cls", window=self.window, clip=self.clip_offsets)
        if self.bucket_offsets is not None:
            table = bucketed(table, self.bucket_offsets, max_distance=self.bucket_distance, by=self.bucket_by)
        return place_cls(table) if self.encoding == "placed" else table


class ViT(nn.Module):
    """Vision transformer: patches, a stack of blocks, a linear read-out of the CLS token or of the mean.

    Args:
        image_size, patch_size: the side in pixels, or the pair (rows, columns); the patch's divide the image's.
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
        bucket_distance: from here on all distances share the last bucket; by default the longest side in patches.
        embedding_std: the deviation with which a learned embedding starts; many vision transformers take 0.02.
        embedding_trains: whether the embedding is trained, wherever it starts; by default a learned one is.
        options: options of the mixers by their names, for a hybrid stack: {"riemann": {"form": "inner"}}.
        flat: further options of the mixer, such as ``relative_dim=8``.

    Raises:
        ValueError: sizes that do not fit, an unknown mixer, pool, encoding or embedding, sinusoids where no embedding
            is added, a start or a training of an embedding that cannot have it, offsets to clip where relations are
            pairs, offsets to clip and to put in buckets, a rule for buckets where there are none, a place for CLS
            where there is none, options that no layer knows or that two different layers of a hybrid stack share.

    Label: thm-equivariance-patches, thm-static-last, thm-preprint-last, thm-preprint-blind, thm-performers-bag,
    thm-cifar-symmetry.
    """

    def __init__(self, image_size: int | Sequence[int], patch_size: int | Sequence[int], channels: int, classes: int,
                 dim: int, depth: int, heads: int, ff: int, mixer: str | Sequence[str] = "translution",
                 pool: str = "cls", absolute: bool | None = None, encoding: str = "relative", checkpoint: bool = False,
                 clip_offsets: int | None = None, bucket_offsets: int | None = None, bucket_by: str = "axis",
                 window: int | None = None, embedding: str = "learned", bucket_distance: int | None = None,
                 embedding_std: int | float = 1.0, embedding_trains: bool | None = None,
                 options: Mapping[str, Mapping] | None = None, **flat) -> None:
        super().__init__()
        check_sizes(channels=channels, classes=classes, depth=depth)
        image_size, patch_size = _checked(image_size, patch_size)
        check_choice("pool", pool, ("cls", "mean"))
        check_choice("encoding", encoding, ENCODINGS)
        check_choice("embedding", embedding, EMBEDDINGS)
        check_flag("checkpoint", checkpoint)
        _check_sharing(encoding, clip_offsets=clip_offsets, bucket_offsets=bucket_offsets, window=window)
        if bucket_offsets is None and bucket_by != "axis":
            raise ValueError(f"bucket_by must be 'axis' where there are no buckets, got {bucket_by!r}")
        if bucket_offsets is None and bucket_distance is not None:
            raise ValueError(f"bucket_distance must be None where there are no buckets, got {bucket_distance}")
        if encoding == "placed" and pool != "cls":
            raise ValueError(f'encoding "placed" needs pool "cls", got {pool!r}')
        names, options = mixer_names(mixer, depth), joined_options(options, flat)
        absolute = bool(ABSOLUTE.keys() & set(names)) if absolute is None else absolute
        if embedding != "learned" and not absolute:
            raise ValueError(f"embedding must be 'learned' where no embedding is added, got {embedding!r}")
        _check_start(embedding_std, embedding_trains, drawn=absolute and embedding == "learned", added=absolute)
        self.config = ViTConfig(image_size, patch_size, channels, classes, dim, depth, heads, ff, names, pool,
                                absolute, encoding, options, checkpoint, clip_offsets, bucket_offsets, bucket_by,
                                window, embedding, bucket_distance, embedding_std, embedding_trains)
        if bucket_offsets is not None and bucket_distance is None:      # kept, so that a larger copy means the same
            self.config = replace(self.config, bucket_distance=max(*self.config.grid, bucket_offsets // 2 + 1))
        self.relations = self.config.relations()
        pixels = prod(self.config.patch)
        first = nn.LayerNorm(pixels) if self.config.normalised else nn.Identity()
        self.patches = nn.Sequential(first, nn.Linear(pixels, dim), nn.LayerNorm(dim))
        self.cls = nn.Parameter(torch.randn(dim)) if pool == "cls" else None
        self._add_embedding()
        self.blocks = make_blocks(names, self.relations, dim, heads, ff, options)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def _add_embedding(self) -> None:
        """Set ``position``: None, a parameter, or fixed sinusoids. These are zero for CLS."""
        c = self.config
        if not c.absolute:
            self.position = None
        elif c.embedding == "learned":
            table = c.embedding_std * torch.randn(c.tokens, c.dim)
            self.position = nn.Parameter(table, requires_grad=c.embedding_trains is not False)
        else:
            table = sinusoids(grid(c.grid).double(), c.dim)
            table = nn.functional.pad(table, (0, 0, int(c.pool == "cls"), 0)).to(torch.get_default_dtype())
            if c.fixed:
                self.register_buffer("position", table, persistent=False)
            else:
                self.position = nn.Parameter(torch.empty(c.tokens, c.dim))  # on the device of the other parameters
                self.position.data.copy_(table)

    @classmethod
    def named(cls, name: str, *, mixer: str | Sequence[str] = "translution", image_size: int | Sequence[int] = 224,
              channels: int = 3, classes: int = 1000, **options) -> "ViT":
        """Return an architecture of Table 1 with a patch size, such as "A/12", "B/56" or, rows first, "A/8x12"."""
        letter, _, patch = str(name).partition("/")
        sides = patch.split("x")
        if len(sides) > 2 or not all(side.isdigit() for side in sides):
            raise ValueError(f'name must be a letter and a patch size such as "A/12", got {name!r}')
        size, pixels = architecture(letter), [int(side) for side in sides]
        return cls(image_size, pixels if len(sides) > 1 else pixels[0], channels, classes, size.dim, size.depth,
                   size.heads, size.ff, mixer, **options)

    def resized(self, image_size: int | Sequence[int]) -> "ViT":
        """Return a copy for images of another size, in patches of the same, with all that this model has learnt.

        What it knows by offset or place stays, and so does CLS. A new offset or place starts with the parameters of
        the nearest one that is known; fixed sinusoids go on. An image that is cut off at its right and lower side is
        read by the smaller copy as this model reads it with the missing patches masked.

        Raises:
            ValueError: sizes that do not fit, relations that are pairs of tokens: they know no offset and no place.
        """
        if self.config.encoding == "pairs":
            raise ValueError('encoding must not be "pairs" for a model that is resized: they know no offset')
        other = resized(self, image_size=image_size)
        if self.config.fixed:
            other._add_embedding()
            other.position = other.position.to(self.position)
        return other

    def tokens(self, images: Float[Tensor, "b ch height width"]) -> Float[Tensor, "b n c"]:
        """Return the tokens that enter the first block: embedded patches, CLS first, places added if absolute."""
        c = self.config
        if images.ndim != 4 or images.shape[1:] != c.image:
            raise ValueError(f"images must have the shape (batch, {', '.join(map(str, c.image))}), "
                             f"got {tuple(images.shape)}")
        _, u, v = c.patch
        x = self.patches(rearrange(images, "b ch (y u) (x v) -> b (y x) (u v ch)", u=u, v=v))
        if self.cls is not None:
            x = torch.cat([self.cls.to(x.dtype).expand(x.shape[0], 1, -1), x], dim=1)
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


def two(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Return rows and columns from one side or from a pair of them.

    Raises:
        ValueError: something else, by its name.
    """
    sides = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"{name} must be an integer ≥ 1 or a pair of them, got {size!r}")
    rows, columns = sides
    check_sizes(**{name: rows})
    check_sizes(**{name: columns})
    return rows, columns


def _checked(image_size: int | Sequence[int],
             patch_size: int | Sequence[int]) -> tuple[int | tuple[int, int], int | tuple[int, int]]:
    """Return the sizes as a configuration keeps them, integers as they are, if patches fill the image."""
    sizes: dict = {"image_size": image_size, "patch_size": patch_size}
    image, patch = (two(name, size) for name, size in sizes.items())
    if any(side % part for side, part in zip(image, patch, strict=True)):
        raise ValueError(f"patch_size must divide image_size = {image_size}, got {patch_size}")
    kept = (size if isinstance(size, int) else two(name, size) for name, size in sizes.items())
    image_size, patch_size = kept
    return image_size, patch_size


def _check_sharing(encoding: str, **rules: int | None) -> None:
    """Refuse a rule about offsets where relations are pairs, and two rules of sharing at once."""
    given = {name: rule for name, rule in rules.items() if rule is not None}
    if encoding == "pairs" and given:
        name, rule = next(iter(given.items()))
        raise ValueError(f'{name} must be None where encoding is "pairs", got {rule}')
    if {"clip_offsets", "bucket_offsets"} <= given.keys():
        raise ValueError(f"bucket_offsets must be None where offsets are clipped, got {given['bucket_offsets']}")


def _check_start(std: int | float, trains: bool | None, drawn: bool, added: bool) -> None:
    """Refuse a start or a training that the embedding cannot have."""
    if isinstance(std, bool) or not isinstance(std, (int, float)) or not 0 <= std < inf:
        raise ValueError(f"embedding_std must be a number ≥ 0, got {std!r}")
    if std != 1 and not drawn:
        raise ValueError(f"embedding_std must be 1.0 where no learned embedding is added, got {std}")
    if trains is not None:
        check_flag("embedding_trains", trains)
        if not added:
            raise ValueError(f"embedding_trains must be None where no embedding is added, got {trains}")

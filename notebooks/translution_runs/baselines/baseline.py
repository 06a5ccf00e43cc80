"""The networks that Horn et al. (2021) compares its Performers with, by name. Chapter "Performers under shifts"."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.mixers.attention import check_sizes
from translution_runs.baselines.convolutional import CONVOLUTIONAL, WIDTH
from translution_runs.baselines.efficient import linformer_vit, routing_vit

EFFICIENT = {"linformer": linformer_vit, "routing-transformer": routing_vit}
BASELINES = (*CONVOLUTIONAL, *EFFICIENT)
"""Names of :class:`Baseline`."""


@dataclass(frozen=True)
class BaselineConfig:
    """Everything that determines a :class:`Baseline`; the fields are its arguments."""

    name: str
    image_size: int
    channels: int
    classes: int
    dim: int = WIDTH
    sizes: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)


class Baseline(nn.Module):
    """A convolutional network, or a transformer of another kind.

    Args:
        name: one of ``BASELINES``.
        image_size, channels: of the pictures; a convolutional network needs sides of at least 32 pixels.
        classes: how many there are.
        dim: channels of a token, or of a convolutional network's first layer.
        sizes: a transformer's patch_size, depth, heads, ff and pool, as for :class:`ViT`; {} for the others.
        options: "projected" of linformer, "window" of routing-transformer.

    Raises:
        ValueError: an unknown name, sizes that are not positive integers or do not fit, an unknown option.
    """

    def __init__(self, name: str, image_size: int, channels: int, classes: int, dim: int = WIDTH,
                 sizes: dict | None = None, **options) -> None:
        super().__init__()
        if name not in BASELINES:
            raise ValueError(f"name must be one of {', '.join(BASELINES)}, got {name!r}")
        check_sizes(image_size=image_size, channels=channels, classes=classes, dim=dim)
        self.config = BaselineConfig(name, image_size, channels, classes, dim, dict(sizes or {}), dict(options))
        self.network = self._convolutional() if name in CONVOLUTIONAL else self._transformer()

    def _convolutional(self) -> nn.Module:
        c = self.config
        if c.image_size < 32:
            raise ValueError(f"image_size must be at least 32 for {c.name}, got {c.image_size}")
        if c.sizes or c.options:
            raise ValueError(f"{c.name} has no sizes and options but dim, got {[*c.sizes, *c.options]}")
        return CONVOLUTIONAL[c.name](c.channels, c.classes, c.dim)

    def _transformer(self) -> nn.Module:
        c, known = self.config, {"linformer": "projected", "routing-transformer": "window"}[self.config.name]
        if set(c.options) - {known}:
            raise ValueError(f"{c.name} has the option {known!r} alone, got {sorted(c.options)}")
        shape = {"image_size": c.image_size, "channels": c.channels, "classes": c.classes, "dim": c.dim}
        return EFFICIENT[c.name]({**shape, **c.sizes}, **c.options)

    def forward(self, images: Float[Tensor, "b ch height width"]) -> Float[Tensor, "b classes"]:
        """Return the logits of the classes."""
        c = self.config
        if images.ndim != 4 or images.shape[1:] != (c.channels, c.image_size, c.image_size):
            raise ValueError(f"images must have the shape (batch, {c.channels}, {c.image_size}, {c.image_size}), "
                             f"got {tuple(images.shape)}")
        return self.network(images)

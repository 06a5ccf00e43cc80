"""Convolutional networks of the kinds that Horn et al.'s Table 1 compares with: AlexNet, VGG-16 and ResNet-18.

Written for pictures of 32 × 32 pixels as the table's sizes need it; ``width`` scales all channels. Source: Horn et al.
(2021), Table 1; chapter "Performers under shifts". The layers are those of Krizhevsky et al. (2012), Simonyan and
Zisserman (2015) and He et al. (2016), with the initial weights that torchvision gives them.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

WIDTH = 64
"""Channels of the first layer as printed; every other size is in proportion to it."""
VGG_STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Channels of VGG-16's convolutions as multiples of the first; a pooling of 2 × 2 after each stage."""
VGG_HIDDEN, VGG_SIDE = 64, 7
"""Hidden channels of its dense layers as a multiple of the first, and the side of what they read."""


def alexnet(channels: int, classes: int, width: int = WIDTH) -> nn.Sequential:
    """Return AlexNet's five convolutions with one linear read-out, as small pictures and the printed 2.5 M need it.

    The original's dense layers alone would have 50 M parameters and more. Pictures of 32 pixels or more end in the
    mean over what five reductions leave.
    """
    sizes = [width, 3 * width, 6 * width, 4 * width, 4 * width]
    return nn.Sequential(
        nn.Conv2d(channels, sizes[0], 11, stride=4, padding=5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(sizes[0], sizes[1], 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(sizes[1], sizes[2], 3, padding=1), nn.ReLU(),
        nn.Conv2d(sizes[2], sizes[3], 3, padding=1), nn.ReLU(),
        nn.Conv2d(sizes[3], sizes[4], 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(sizes[4], classes))


def vgg16(channels: int, classes: int, width: int = WIDTH) -> nn.Sequential:
    """Return VGG-16: thirteen convolutions of 3 × 3, then three dense layers that read 7 × 7 places."""
    layers: list[nn.Module] = []
    inner = channels
    for stage in VGG_STAGES:
        for multiple in stage:
            layers += [nn.Conv2d(inner, multiple * width, 3, padding=1), nn.ReLU()]
            inner = multiple * width
        layers.append(nn.MaxPool2d(2))
    hidden = VGG_HIDDEN * width
    net = nn.Sequential(
        *layers, SpreadTo(VGG_SIDE), nn.Flatten(),
        nn.Linear(inner * VGG_SIDE ** 2, hidden), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, classes))
    return net.apply(_he)


def resnet18(channels: int, classes: int, width: int = WIDTH) -> nn.Sequential:
    """Return ResNet-18: a convolution of 7 × 7, four stages of two residual blocks, the mean, a linear read-out."""
    blocks: list[nn.Module] = []
    inner = width
    for stage in range(4):
        outer = width << stage
        blocks += [Residual(inner, outer, stride=1 + (stage > 0)), Residual(outer, outer)]
        inner = outer
    net = nn.Sequential(
        nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))
    return net.apply(_he)


class Residual(nn.Module):
    """x + two convolutions of 3 × 3; where the size changes, x goes through a convolution of 1 × 1."""

    def __init__(self, inner: int, outer: int, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer))
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inner, outer, 1, stride=stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b c2 height2 width2"]:
        """Add the branch to the shortcut, then the ReLU."""
        return torch.relu(self.branch(x) + self.shortcut(x))


class SpreadTo(nn.Module):
    """Means over a grid of so many places a side; one place is repeated, which adaptive pooling does as well."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b c side side"]:
        """Pool, or repeat: the backward of a repetition does not depend on the order of threads."""
        if x.shape[-2:] == (1, 1):
            return x.expand(-1, -1, self.side, self.side)
        return nn.functional.adaptive_avg_pool2d(x, self.side)


def _he(layer: nn.Module) -> None:
    """Convolutions as He et al. (2015) for the outputs; where they have a bias (VGG), dense layers as torchvision."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


CONVOLUTIONAL: dict[str, Callable[[int, int, int], nn.Sequential]] = {
    "alexnet": alexnet, "vgg-16": vgg16, "resnet-18": resnet18}
"""The networks by name."""

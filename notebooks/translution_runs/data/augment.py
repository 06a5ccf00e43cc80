"""Augmentation on the device of the images, decided by a seed and an image's number."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

AUGMENTATIONS = ("none", "crop-flip")
MARGIN = 8  # the side of an image, over what is added to it


def augment(
    images: Float[Tensor, "b ch h w"], name: str, seed: int, first: int = 0, total: int | None = None
) -> Float[Tensor, "b ch h w"]:
    """The images, each changed at random.

    "crop-flip" is what CIFAR is commonly trained with (He et al., 2016, section 4.2): an eighth of the side (4 of 32
    pixels) is added in black on every side, a window of the old size is cut out anywhere, and every second image on
    average is mirrored left to right.

    Args:
        images: on any device; random numbers are drawn on the CPU, so that they are the same on all.
        name: a name in `AUGMENTATIONS`; "none" returns the images.
        seed: what is drawn for image k of a batch depends on the seed, on k and on `total` alone.
        first: the number of the first image in a batch of `total`: a part of a batch is changed as in the whole.
        total: images in the batch; None is as many as there are.

    Raises:
        ValueError: an unknown name, or images outside the batch.
    """
    if name not in AUGMENTATIONS:
        raise ValueError(f"name: got {name!r}, expected one of {AUGMENTATIONS}")
    total = first + len(images) if total is None else total
    if not 0 <= first <= total - len(images):
        raise ValueError(f"first: got {first}, expected 0 to {total - len(images)} for {len(images)} of {total} images")
    if name == "none" or not len(images):
        return images
    drawn = draw(seed, total, *images.shape[-2:])[first:first + len(images)]
    return crop_flip(images, drawn.to(images.device))


def draw(seed: int, total: int, height: int, width: int) -> Int64[Tensor, "b 3"]:
    """What "crop-flip" does to so many images: row and column of a window's corner, and 1 where it is mirrored.

    The numbers are those of kornia's RandomCrop and RandomHorizontalFlip under this seed (Riba et al., 2020).
    """
    stream = torch.Generator().manual_seed(seed)
    column, row, mirrored = (torch.rand(total, generator=stream) for _ in range(3))
    rooms = (row, 2 * (height // MARGIN) + 1), (column, 2 * (width // MARGIN) + 1)
    return torch.stack([*((part * room).long() for part, room in rooms), (mirrored < 0.5).long()], dim=1)


def crop_flip(images: Float[Tensor, "b ch h w"], drawn: Int64[Tensor, "b 3"]) -> Float[Tensor, "b ch h w"]:
    """The windows that `draw` says, cut out of the images with black margins; all on one device."""
    batch, _, height, width = images.shape
    down, right = height // MARGIN, width // MARGIN
    which, rows, columns = (torch.arange(count, device=images.device) for count in (batch, height, width))
    rows = drawn[:, 0, None] + rows
    columns = drawn[:, 1, None] + torch.where(drawn[:, 2, None] == 1, width - 1 - columns, columns)
    padded = pad(images, (right, right, down, down))
    cut = padded[which[:, None, None], :, rows[:, :, None], columns[:, None]]  # b h w ch
    return cut.permute(0, 3, 1, 2).contiguous()

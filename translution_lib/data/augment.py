"""Augmentation on the device of the images, by kornia (Riba et al., 2020), decided by a seed and an image's number."""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

AUGMENTATIONS = ("none", "crop-flip")


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
        ImportError: kornia is not installed.
    """
    if name not in AUGMENTATIONS:
        raise ValueError(f"name: got {name!r}, expected one of {AUGMENTATIONS}")
    total = first + len(images) if total is None else total
    if not 0 <= first <= total - len(images):
        raise ValueError(f"first: got {first}, expected 0 to {total - len(images)} for {len(images)} of {total} images")
    if name == "none" or not len(images):
        return images
    changes, (height, width) = crop_flip(*images.shape[-2:]), images.shape[-2:]
    drawn = draw(changes, seed, (total, images.shape[1], height, width))
    result: Tensor = changes(images, params=part(drawn, first, len(images)))
    return result


@cache
def crop_flip(height: int, width: int) -> Any:
    """Kornia's random crop and mirroring for images of this size."""
    try:
        from kornia import augmentation
    except ImportError as error:
        raise ImportError("augmentation is done by kornia: install kornia") from error
    margin = (width // 8, height // 8)  # left and right, top and bottom
    return augmentation.AugmentationSequential(
        augmentation.RandomCrop((height, width), padding=margin), augmentation.RandomHorizontalFlip(p=0.5),
        data_keys=["input"])


def draw(changes: Any, seed: int, shape: tuple[int, int, int, int]) -> Any:
    """The parameters of every change for a batch of this shape; torch's own random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return changes.forward_parameters(torch.Size(shape))


def part(drawn: Any, first: int, count: int) -> Any:
    """The parameters of the images `first` to `first + count` out of a batch's."""
    total = int(drawn[0].data["forward_input_shape"][0])
    chosen = []
    for item in drawn:
        data = {key: value[first:first + count] if key != "forward_input_shape" and len(value) == total else value
                for key, value in item.data.items()}
        data["forward_input_shape"] = torch.tensor([count, *data["forward_input_shape"][1:].tolist()])
        chosen.append(type(item)(item.name, data))
    return chosen

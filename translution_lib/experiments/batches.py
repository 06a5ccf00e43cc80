"""Placed images for a step: which, where, and in which parts, decided by the seed and the numbers of epoch and step."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from translution_lib.data import ImageSet, corners, paste
from translution_lib.data.lazy_images import LazyImages
from translution_lib.experiments.image_classification import ImageClassificationConfig
from translution_lib.experiments.seeds import derive, generator, order
from translution_lib.experiments.streaming import StreamedBatches, centred

Batch = tuple[Float[Tensor, "b ch H W"], Int64[Tensor, " b"]]


def places_of(
    config: ImageClassificationConfig, images: ImageSet, placement: str, positions: torch.Generator
) -> Int64[Tensor, "n 2"]:
    """The corner of every image of the set, drawn at once: the size of a batch changes no position."""
    room = config.canvas - images.size
    return corners(len(images), (room, room), placement, positions, config.patch_size)


def placed(
    config: ImageClassificationConfig, images: ImageSet, corner: Int64[Tensor, "n 2"], index: Int64[Tensor, " b"]
) -> Batch:
    """The images numbered `index` on their canvases, and their labels, on the configured device."""
    small = images.pixels(index).to(config.device)
    return paste(small, (config.canvas, config.canvas), corner[index]), images.labels[index].to(config.device)


def in_order(
    config: ImageClassificationConfig, images: ImageSet | LazyImages, placement: str, positions: torch.Generator
) -> Iterator[Batch]:
    """The whole set in the order of its numbers, a batch at a time."""
    if isinstance(images, LazyImages):
        yield from centred(config, images)
        return
    corner = places_of(config, images, placement, positions)
    for index in torch.arange(len(images)).split(config.batch_size):
        yield placed(config, images, corner, index)


class EpochBatches:
    """The steps of one epoch: order and places follow from the seed and the epoch's number.

    Args:
        config: the run's parameters.
        images: the training set.
        epoch: from 0.
    """

    def __init__(self, config: ImageClassificationConfig, images: ImageSet, epoch: int) -> None:
        self.config, self.images, self.epoch = config, images, epoch
        self.corner = places_of(config, images, config.train_placement, generator(config.seed, "positions", epoch))
        self.steps = order(config.seed, len(images), epoch).split(config.batch_size)

    def __len__(self) -> int:
        return len(self.steps)

    def parts(self, step: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The parts of a step that process `rank` of `world` goes through one after the other; some may be empty."""
        first = 0
        for k, index in enumerate(self.steps[step].tensor_split(world * self.config.accumulate)):
            if k // self.config.accumulate == rank:
                inputs, labels = placed(self.config, self.images, self.corner, index)
                yield self._augmented(inputs, step, first), labels
            first += len(index)

    def _augmented(self, inputs: Float[Tensor, "b ch H W"], step: int, first: int) -> Float[Tensor, "b ch H W"]:
        """What an image gets depends on its number in the step alone, however the step is shared out."""
        if self.config.augment == "none":
            return inputs
        from translution_lib.data.augment import augment

        seed = derive(self.config.seed, "augment", self.epoch, step)
        return augment(inputs, self.config.augment, seed=seed, first=first, total=len(self.steps[step]))


def epoch_batches(
    config: ImageClassificationConfig, images: ImageSet | LazyImages, epoch: int
) -> EpochBatches | StreamedBatches:
    """The steps of one epoch, of images in memory or of pictures on the disk."""
    if isinstance(images, LazyImages):
        return StreamedBatches(config, images, epoch)
    return EpochBatches(config, images, epoch)

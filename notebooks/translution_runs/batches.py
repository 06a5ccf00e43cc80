"""Placed images for a step: which, where, and in which parts, decided by the seed and the numbers of epoch and step."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from translution_runs.data import ImageSet, corners, paste
from translution_runs.data.augment import crop_flip, draw
from translution_runs.data.lazy_images import LazyImages
from translution_runs.image_classification import ImageClassificationConfig
from translution_runs.seeds import derive, generator, order
from translution_runs.streaming import StreamedBatches, centred

Batch = tuple[Float[Tensor, "b ch H W"], Int64[Tensor, " b"]]


def places_of(
    config: ImageClassificationConfig, images: ImageSet, placement: str, positions: torch.Generator
) -> Int64[Tensor, "n 2"]:
    """The corner of every image of the set, drawn at once: the size of a batch changes no position."""
    room = config.canvas - images.size
    return corners(len(images), (room, room), placement, positions, config.patch_size)


def placed(
    config: ImageClassificationConfig, images: ImageSet, corner: Int64[Tensor, "b 2"], index: Int64[Tensor, " b"]
) -> Batch:
    """The images numbered `index` on their canvases, each at its corner, and their labels, where the set lies."""
    return paste(images.pixels(index), (config.canvas, config.canvas), corner), images.labels[index]


def in_order(
    config: ImageClassificationConfig, images: ImageSet | LazyImages, placement: str, positions: torch.Generator
) -> Iterator[Batch]:
    """The whole set in the order of its numbers, a batch at a time, on the configured device."""
    if isinstance(images, LazyImages):
        yield from centred(config, images)
        return
    images = images.on(config.device)
    index = torch.arange(len(images), device=images.labels.device)
    corner = places_of(config, images, placement, positions).to(index.device)
    for some, where in zip(index.split(config.batch_size), corner.split(config.batch_size), strict=True):
        inputs, labels = placed(config, images, where, some)
        yield inputs.to(config.device), labels.to(config.device)


class EpochBatches:
    """The steps of one epoch: order and places follow from the seed and the epoch's number.

    All that is drawn is drawn at once on the CPU, and lies where the images do: a row for each image in the order of
    the steps. It holds the image's number, the corner of its place, and what the augmentation does to it.

    Args:
        config: the run's parameters.
        images: the training set.
        epoch: from 0.
    """

    def __init__(self, config: ImageClassificationConfig, images: ImageSet, epoch: int) -> None:
        self.config, self.images, self.epoch = config, images, epoch
        index = order(config.seed, len(images), epoch)
        corner = places_of(config, images, config.train_placement, generator(config.seed, "positions", epoch))
        rows = torch.cat([index[:, None], corner[index], self._drawn(len(index))], dim=1)
        self.steps = rows.to(images.labels.device).split(config.batch_size)

    def __len__(self) -> int:
        return len(self.steps)

    def parts(self, step: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The parts of a step that process `rank` of `world` goes through one after the other; some may be empty.

        What an image gets depends on its number in the step alone, however the step is shared out.
        """
        each = self.config.accumulate
        for rows in self.steps[step].tensor_split(world * each)[rank * each:(rank + 1) * each]:
            yield self.batch(rows)

    def batch(self, rows: Int64[Tensor, "b _"]) -> Batch:
        """The images and labels that such rows of any epoch say, on the configured device."""
        inputs, labels = placed(self.config, self.images, rows[:, 1:3], rows[:, 0])
        inputs, labels = inputs.to(self.config.device), labels.to(self.config.device)
        if self.config.augment != "none":
            inputs = crop_flip(inputs, rows[:, 3:].to(inputs.device))
        return inputs, labels

    def _drawn(self, count: int) -> Int64[Tensor, "n _"]:
        """What the augmentation does to the images of all steps."""
        config, size = self.config, self.config.batch_size
        if config.augment == "none":
            return torch.zeros(count, 0, dtype=torch.int64)
        return torch.cat([
            draw(derive(config.seed, "augment", self.epoch, step), min(size, count - first), config.canvas,
                 config.canvas) for step, first in enumerate(range(0, count, size))])


def epoch_batches(
    config: ImageClassificationConfig, images: ImageSet | LazyImages, epoch: int
) -> EpochBatches | StreamedBatches:
    """The steps of one epoch, of images in memory or of pictures on the disk."""
    if isinstance(images, LazyImages):
        return StreamedBatches(config, images, epoch)
    return EpochBatches(config, images, epoch)

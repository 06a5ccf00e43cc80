"""Pictures from the disk for the steps of an epoch, read ahead by worker processes, the same however many there are.

Which pictures a step has follows from the seed and the epoch's number (eq-imagenet-order), and what is cut out of a
picture from the seed, the epoch and the picture's number (eq-imagenet-crop). Nothing else is random. So neither the
number of processes nor that of workers, nor a stop in the middle of an epoch, changes a picture (thm-imagenet-resume).
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from translution_runs.data.lazy_images import LazyImages
from translution_runs.image_classification import ImageClassificationConfig
from translution_runs.seeds import derive, order

Batch = tuple[Float[Tensor, "b 3 h w"], Int64[Tensor, " b"]]
Order = tuple[Int64[Tensor, " _"], list[int] | None]
"""What a worker is told to read: numbers of pictures, and a seed for the view of each, or None for central squares."""


class Reading(Dataset):
    """What a worker does: an order in, bytes of pixels and labels out."""

    def __init__(self, images: LazyImages) -> None:
        self.images = images

    def __getitem__(self, order: Order) -> tuple[UInt8[Tensor, "b 3 h w"], Int64[Tensor, " b"]]:
        index, seeds = order
        return self.images.bytes(index, seeds), self.images.labels[index]


def loader(config: ImageClassificationConfig, images: LazyImages, orders: Iterable[Order]) -> Iterator[Batch]:
    """The orders' pictures as numbers from 0 to 1, and their labels, on the configured device, in the orders' order.

    With `config.workers` above 0 so many processes read, a few orders ahead of what has been asked for.
    """
    cuda = config.device.startswith("cuda")
    # A generator of its own: the loader draws a number for its workers, which would otherwise move torch's own stream.
    reading = DataLoader(Reading(images), batch_size=None, sampler=orders, num_workers=config.workers, pin_memory=cuda,
                         generator=torch.Generator())
    for pixels, labels in reading:
        yield pixels.to(config.device, non_blocking=cuda).float() / 255, labels.to(config.device, non_blocking=cuda)


class StreamedBatches:
    """The steps of one epoch, of pictures outside memory.

    Args:
        config: the run's parameters.
        images: the training set.
        epoch: from 0.

    Label: thm-imagenet-resume.
    """

    def __init__(self, config: ImageClassificationConfig, images: LazyImages, epoch: int) -> None:
        self.config, self.images, self.epoch = config, images, epoch
        self.steps = order(config.seed, len(images), epoch).split(config.batch_size)
        self._place: tuple[int, int, int] | None = None
        self._stream: Iterator[Batch] = iter(())

    def __len__(self) -> int:
        return len(self.steps)

    def shares(self, step: int, rank: int = 0, world: int = 1) -> list[Int64[Tensor, " _"]]:
        """The numbers of the pictures that process `rank` of `world` reads in a step, in the parts it is taken in."""
        each = self.config.accumulate
        return list(self.steps[step].tensor_split(world * each)[rank * each:(rank + 1) * each])

    def seeds(self, index: Int64[Tensor, " b"]) -> list[int] | None:
        """What decides on the views of pictures in this epoch."""
        if self.config.augment == "none":
            return None
        return [derive(self.config.seed, "view", self.epoch, number) for number in index.tolist()]

    def parts(self, step: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The parts of a step that process `rank` of `world` goes through one after the other; some may be empty.

        Steps are read ahead in ascending order, from the first that is asked for; another order begins anew.
        """
        if self._place != (step, rank, world):
            self._stream = loader(self.config, self.images, Ahead(self, step, rank, world))
        self._place = (step + 1, rank, world)
        for _ in range(self.config.accumulate):
            yield next(self._stream)


class Ahead(Sampler[Order]):
    """The orders of one process from a step to the epoch's end, each made when a worker is free for it."""

    def __init__(self, batches: StreamedBatches, first: int, rank: int, world: int) -> None:
        self.batches, self.first, self.rank, self.world = batches, first, rank, world

    def __len__(self) -> int:
        return (len(self.batches) - self.first) * self.batches.config.accumulate

    def __iter__(self) -> Iterator[Order]:
        for step in range(self.first, len(self.batches)):
            for index in self.batches.shares(step, self.rank, self.world):
                yield index, self.batches.seeds(index)


def centred(config: ImageClassificationConfig, images: LazyImages) -> Iterator[Batch]:
    """The central squares of the whole set in the order of its numbers, a batch at a time."""
    return loader(config, images, [(index, None) for index in torch.arange(len(images)).split(config.batch_size)])

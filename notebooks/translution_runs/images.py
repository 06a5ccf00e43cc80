"""What the runner needs to know of images: how they are read, counted and tested."""

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from translution_lib.models import ViT
from translution_runs.batches import Batch
from translution_runs.building import Model
from translution_runs.data import ImageSet, digits, load
from translution_runs.data.lazy_images import LazyImages
from translution_runs.data.sources import known
from translution_runs.evaluation import evaluate
from translution_runs.image_classification import ImageClassificationConfig, build_model
from translution_runs.pictures import PICTURES, load_pictures
from translution_runs.records import DataSource
from translution_runs.shifts import evaluate_shifts, shiftable

Images = ImageSet | LazyImages
FORWARD = 1 / 3
"""The part of a training step that testing repeats: forward, without backward, which costs twice as much."""


def load_sets(config: ImageClassificationConfig) -> dict[str, Images]:
    """Training and test images.

    Raises:
        ValueError: data that are not what they should be, or no test image that can be shifted as configured.
    """
    limits = {"train": config.train_samples, "test": config.test_samples}
    sets = {split: images.first(limits[split]) for split, images in whole_sets(config).items()}
    if config.shift and isinstance(sets["test"], ImageSet):
        shiftable(config, sets["test"])  # said before hours of training
    return sets


def whole_sets(config: ImageClassificationConfig) -> dict[str, Images]:
    """All training and test images, or the two parts of the training images of a run that never reads the others."""
    if not config.held_out:
        return {split: load_split(config, split) for split in ("train", "test")}
    images = load_split(config, "train")
    assert isinstance(images, ImageSet)  # the configuration refuses it for pictures that are streamed
    return dict(zip(("train", "test"), images.parted(config.held_out), strict=True))


def load_split(config: ImageClassificationConfig, split: str) -> Images:
    """One split of the configured data set.

    Raises:
        ValueError: no folder where one is needed, or files that are not what they should be.
        FileNotFoundError: a file is missing.
    """
    if config.data == "imagenet":
        return load_pictures(config, split)
    if config.data == "digits":
        return digits(split, size=config.image_size)
    return read(config.data, split, config.data_root, config.data_source).scaled(config.image_size)


@lru_cache(maxsize=2)
def read(data: str, split: str, root: str, source: str) -> ImageSet:
    """A split as its files have it; the runs that one process makes read it once, for to decode it takes seconds."""
    return load(data, split, root, source)


def build(config: ImageClassificationConfig, sets: dict[str, Images]) -> Model:
    """The model; the images say nothing that the configuration does not."""
    return build_model(config)


def examples(config: ImageClassificationConfig, images: Images) -> int:
    """How many an epoch has: every image once."""
    return len(images)


def sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy summed over the images, and how many are right."""
    return cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) == labels).sum()


def measure(config: ImageClassificationConfig, model: torch.nn.Module, images: Images) -> dict[str, Any]:
    """What a record says of the test images in each placement, and where configured under shifts."""
    if config.test_canvas:
        model = cast(ViT, model).resized(config.test_canvas)
        config = config.model_copy(update={"canvas": config.test_canvas})
    shifts = evaluate_shifts(config, model, images) if config.shift and isinstance(images, ImageSet) else {}
    return {"evaluations": {**evaluate(config, model, images), **shifts}}


def describe(images: Images) -> DataSource:
    """What a record says about a split."""
    return DataSource(name=images.name, split=images.split, samples=len(images), sha256=dict(images.sha256))


def work(config: ImageClassificationConfig) -> float:
    """How many images a run computes, a tested one counted as the forward part of a trained one."""
    counts = PICTURES if config.data == "imagenet" else known(config.data).counts
    available = counts["train"] - config.held_out
    train = min(config.train_samples or available, available)
    tested = config.held_out or counts["test"]
    test = min(config.test_samples or tested, tested)
    return config.epochs * train + FORWARD * len(config.placements) * test


def noise(config: ImageClassificationConfig) -> Batch:
    """A batch that takes as long as a real one."""
    inputs = torch.rand(config.batch_size, config.channels, config.canvas, config.canvas, device=config.device)
    return inputs, torch.randint(config.classes, (config.batch_size,), device=config.device)

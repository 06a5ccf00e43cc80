"""ImageNet's two splits, or a stand-in's, as a configuration asks for them."""

from translution_runs.data.generated import generated
from translution_runs.data.imagenet import COUNTS, imagenet
from translution_runs.data.lazy_images import LazyImages
from translution_runs.image_classification import ImageClassificationConfig

SPLITS = {"train": "train", "test": "validation"}
"""What an experiment tests on: nobody has the labels of ImageNet's test split."""
PICTURES = {split: COUNTS[name] for split, name in SPLITS.items()}
"""Pictures of ImageNet in each split of an experiment."""


def load_pictures(config: ImageClassificationConfig, split: str) -> LazyImages:
    """One split, read as it is asked for.

    Args:
        config: a run's parameters, with the data "imagenet".
        split: "train" or "test", for which the pictures to validate on are taken.

    Raises:
        ValueError: files that are not what they should be, or no folder.
        FileNotFoundError: no such files; the message says what to put where.
    """
    name = SPLITS[split]
    if config.data_source == "generated":
        return generated(name, COUNTS[name], config.classes).scaled(config.image_size)
    counts = None if config.data_classes else COUNTS
    return imagenet(config.data_root, name, config.classes, counts).scaled(config.image_size)

"""The kinds of experiments: for each its parameters, its notebook, and how its data are read, trained on and tested.

Everything else, from the loop of the training to the tables, is the same for all of them.
Chapter "From laptop to cluster".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from translution_runs import image_classification, images, language_modelling, text_evaluation, texts
from translution_runs.batches import epoch_batches
from translution_runs.image_classification import ImageClassificationConfig
from translution_runs.language_modelling import LanguageModellingConfig

AnyConfig = ImageClassificationConfig | LanguageModellingConfig


@dataclass(frozen=True)
class Kind:
    """A kind of experiment. `data` is one split, as `load` gives it.

    Attributes:
        name: in grid files and records, and of the folder of its records.
        config: class of its parameters.
        notebook: file in the folder `notebooks`.
        embedded: data sets that need no file.
        load: from a configuration, training and test data by "train" and "test"; what is wrong is said here.
        build: the model, from a configuration and what `load` gave, or nothing.
        skeleton: the model without numbers, from a configuration.
        epoch: the steps of an epoch: from a configuration, training data and the epoch's number from 0.
        examples: how many an epoch has, from a configuration and training data.
        sums: from logits and targets, a step's summed loss and number right.
        measure: fields of the record, from a configuration, a trained model and test data.
        describe: a `DataSource`, from data.
        work: how many examples a run computes, from a configuration.
        noise: a batch that takes as long as a real one, from a configuration.
        speed: parameters that decide how long an example takes, beside those of every kind.
        unit: what the examples are called.
    """

    name: str
    config: type[AnyConfig]
    notebook: str
    embedded: frozenset[str]
    load: Callable[..., dict[str, Any]]
    build: Callable[..., Any]
    skeleton: Callable[..., Any]
    epoch: Callable[..., Any]
    examples: Callable[..., int]
    sums: Callable[..., Any]
    measure: Callable[..., dict[str, Any]]
    describe: Callable[..., Any]
    work: Callable[..., float]
    noise: Callable[..., Any]
    speed: tuple[str, ...]
    unit: str


IMAGES = Kind(
    "image-classification", ImageClassificationConfig, "image_classification.ipynb", frozenset({"digits"}),
    images.load_sets, images.build, image_classification.model_without_numbers, epoch_batches, images.examples,
    images.sums, images.measure, images.describe, images.work, images.noise,
    ("model", "pool", "encoding", "channels", "canvas", "patch_size"), "images",
)
TEXTS = Kind(
    "language-modelling", LanguageModellingConfig, "language_modelling.ipynb", frozenset({"grammar"}),
    texts.load_sets, texts.build, language_modelling.model_without_numbers, texts.EpochWindows, texts.examples,
    texts.sums, text_evaluation.measure, texts.describe, texts.work, texts.noise, ("context", "vocabulary"), "tokens",
)
KINDS = {kind.name: kind for kind in (IMAGES, TEXTS)}


def kind_of(config: AnyConfig) -> Kind:
    """The kind of experiment that a configuration belongs to."""
    return next(kind for kind in KINDS.values() if kind.config is type(config))


def kind_named(name: str) -> Kind:
    """The kind of a name.

    Raises:
        ValueError: there is none.
    """
    if name not in KINDS:
        raise ValueError(f"experiment: got {name!r}, expected one of {', '.join(KINDS)}")
    return KINDS[name]

"""Parameters of the image classification experiment, and the model they describe."""

import json
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from translution_lib import models
from translution_lib.data import PLACEMENTS
from translution_lib.experiments.configuration import Configuration
from translution_lib.mixers import MIXERS
from translution_lib.models import Architecture, ViT

# Beside the paper's A, B and C one for a run of seconds on a CPU.
ARCHITECTURES = {"tiny": Architecture(depth=2, dim=32, heads=2, ff=64), **models.ARCHITECTURES}
# Side of an image in pixels, its channels, and the number of classes.
SHAPES = {"digits": (8, 1, 10), "mnist": (28, 1, 10), "fashion-mnist": (28, 1, 10), "cifar10": (32, 3, 10),
          "cifar100": (32, 3, 100)}

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class ImageClassificationConfig(Configuration):
    """A Vision Transformer with any mixer, trained on small images placed on a canvas.

    Attributes:
        run_name: file name of the record; empty derives one from the parameters.
        mixer: a name in `MIXERS`, or one for each layer, separated by commas.
        mixer_options: further options of the mixer as a JSON object, such as `{"relative_dim": 8}`.
        architecture: "tiny", or "A", "B", "C" of the paper.
        dim: channels of a token; this and the next three replace the architecture's where they are not 0.
        depth: number of layers.
        heads: number of heads.
        ff: hidden channels of the feed-forward part.
        pool: the classifier reads the CLS token ("cls") or the mean of the tokens ("mean").
        encoding: "relative" (one relation an offset), "placed" (also one for CLS and each patch, each way) or "pairs"
            (one an ordered pair of tokens: Table 5's ablation).
        absolute_embedding: a learned embedding of every place is added to the tokens, whatever the mixer.
        data: "digits" (embedded in scikit-learn), "mnist", "fashion-mnist", "cifar10" or "cifar100".
        data_source: "folder" (read from `data_root`) or "huggingface" (through the package `datasets`).
        data_root: folder with the files of the data set.
        digit_size: side in pixels that an image is scaled to, an embedded digit by repeated pixels, others bilinearly;
            0 leaves the images as they are.
        augment: "none", or "crop-flip" (random crops after padding, and mirroring) on the device.
        canvas: side of the canvas in pixels.
        patch_size: side of a patch in pixels; divides the canvas.
        train_placement: "static" (centred) or "dynamic" (anywhere, new in each epoch), or "aligned" (whole patches from
            the centre), "near" (up to half a patch from it), "moving" (a frame of a flight).
        test_placements: those that the test images are evaluated in, separated by commas.
        outcomes: the record keeps which test images were right, in the order of the set.
        epochs: length of the training.
        batch_size: images in a step, over all processes.
        accumulate: in how many parts a process goes through its share of a step.
        learning_rate: AdamW's at the start; follows a cosine to 0, one step an epoch.
        weight_decay: AdamW's.
        train_samples: how many images of the training split; 0 is all.
        test_samples: how many of the test split; 0 is all.
        shift: test images of `shift_class` are also evaluated at every shift along the x axis of up to so many pixels.
        shift_class: the class of these images.
        seed: of the initial weights, the order of the images and their positions.
        device: "cpu", "cuda" or "cuda:1" and so on.
        precision: "float32", or "bfloat16" for autocast.
        compile: the model is compiled by torch.compile.
        processes: how many train together, on the CPU or on as many GPUs.
        strategy: "ddp" (each process has the whole model) or "fsdp" (each a part of it).
        threads: torch's threads on the CPU; 0 leaves torch's choice.
        checkpoint_minutes: time between two checkpoints; 0 writes them by steps alone.
        checkpoint_steps: steps between two checkpoints; 0 writes them by time alone.
        results_dir: folder for the record.
    """

    PLACES: ClassVar[frozenset[str]] = frozenset({"data_root", "results_dir"})
    KEEPING: ClassVar[frozenset[str]] = frozenset({"run_name", "checkpoint_minutes", "checkpoint_steps"})

    run_name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=120)
    mixer: str = "translution"
    mixer_options: str = "{}"
    architecture: Literal["tiny", "A", "B", "C"] = "tiny"
    dim: Count = 0
    depth: Count = 0
    heads: Count = 0
    ff: Count = 0
    pool: Literal["cls", "mean"] = "cls"
    encoding: Literal["relative", "placed", "pairs"] = "relative"
    absolute_embedding: bool = False
    data: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"] = "digits"
    data_source: Literal["folder", "huggingface"] = "folder"
    data_root: str = ""
    digit_size: Count = 0
    augment: Literal["none", "crop-flip"] = "none"
    canvas: Positive = 24
    patch_size: Positive = 6
    train_placement: Literal["static", "dynamic", "aligned", "near", "moving"] = "static"
    test_placements: str = "static,dynamic"
    outcomes: bool = False
    epochs: Positive = 8
    batch_size: Positive = 64
    accumulate: Positive = 1
    learning_rate: float = Field(3e-3, gt=0, le=1)
    weight_decay: float = Field(0.05, ge=0, le=1)
    train_samples: Count = 0
    test_samples: Count = 0
    shift: Count = 0
    shift_class: Count = 1
    seed: Count = 0
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    processes: Positive = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    threads: Count = 0
    checkpoint_minutes: float = Field(5.0, ge=0)
    checkpoint_steps: Count = 0
    results_dir: str = Field("runs", min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "ImageClassificationConfig":
        unknown = sorted({name for name in self.mixers if name not in MIXERS})
        if unknown:
            raise ValueError(f"mixer: got {', '.join(map(repr, unknown))}, expected one of {', '.join(sorted(MIXERS))}")
        if len(self.mixers) not in (1, self.sizes.depth):
            depth = self.sizes.depth
            raise ValueError(f"mixer: got {len(self.mixers)} names, expected 1 or one for each of {depth} layers")
        self._check_images()
        self._check_steps()
        self._check_model()
        return self

    def _check_images(self) -> None:
        """What has to fit: images, canvas, patches, placements and shifts."""
        smallest = SHAPES[self.data][0]
        if self.digit_size and self.digit_size < smallest:
            raise ValueError(f"digit_size: got {self.digit_size}, expected 0 or at least {smallest}")
        if self.canvas < self.image_size:
            raise ValueError(f"canvas: got {self.canvas}, expected at least {self.image_size}, the size of the images")
        if self.canvas % self.patch_size:
            raise ValueError(f"patch_size: got {self.patch_size}, expected a divisor of the canvas, {self.canvas}")
        if self.shift >= self.canvas:
            raise ValueError(f"shift: got {self.shift}, expected less than the canvas, {self.canvas}")
        if self.shift_class >= self.classes:
            raise ValueError(f"shift_class: got {self.shift_class}, expected 0 to {self.classes - 1}")
        unknown = [name for name in self.tested if name not in PLACEMENTS]
        if unknown or len(set(self.tested)) < len(self.tested):
            raise ValueError(f"test_placements: got {self.test_placements!r}, expected different names of "
                             f"{', '.join(PLACEMENTS)}, separated by commas")

    def _check_steps(self) -> None:
        """What one step is divided into."""
        parts = self.processes * self.accumulate
        if parts > self.batch_size:
            raise ValueError(f"batch_size: got {self.batch_size}, expected at least {parts}, processes × accumulate")
        if self.strategy == "fsdp" and self.processes == 1:
            raise ValueError("strategy: got 'fsdp' for one process, expected 'ddp', or more processes")
        if ":" in self.device and self.processes > 1:
            raise ValueError(f"device: got {self.device!r} for {self.processes} processes, expected 'cuda' or 'cpu'")

    def _check_model(self) -> None:
        """Build the model without its numbers, so that a wrong option shows before anything runs."""
        options = self.options  # a broken JSON text has its own message
        try:
            arguments = repr(_arguments(self))
            if arguments not in _BUILT:
                model_without_numbers(self)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the model cannot be built with mixer {self.mixer!r}, mixer_options {options} and "
                             f"{self.sizes}: {error}") from error
        _BUILT.add(arguments)

    @property
    def mixers(self) -> list[str]:
        """The mixer's name, or one for each layer."""
        return [name.strip() for name in self.mixer.split(",")]

    @property
    def options(self) -> dict[str, Any]:
        """`mixer_options` as a dictionary."""
        try:
            options = json.loads(self.mixer_options)
        except json.JSONDecodeError as error:
            raise ValueError(f"mixer_options: got {self.mixer_options!r}, expected a JSON object ({error})") from error
        if not isinstance(options, dict):
            raise ValueError(f"mixer_options: got {self.mixer_options!r}, expected a JSON object such as {{}}")
        return options

    @property
    def sizes(self) -> Architecture:
        """The architecture with what dim, depth, heads and ff replace."""
        own = {"dim": self.dim, "depth": self.depth, "heads": self.heads, "ff": self.ff}
        return replace(ARCHITECTURES[self.architecture], **{name: size for name, size in own.items() if size})

    @property
    def image_size(self) -> int:
        """Side of an image before it is placed, in pixels."""
        return self.digit_size or SHAPES[self.data][0]

    @property
    def channels(self) -> int:
        """Of an image."""
        return SHAPES[self.data][1]

    @property
    def classes(self) -> int:
        """How many there are."""
        return SHAPES[self.data][2]

    @property
    def tested(self) -> list[str]:
        """The placements of `test_placements`."""
        return [name.strip() for name in self.test_placements.split(",")]

    @property
    def name(self) -> str:
        """`run_name`, or a name made of the parameters."""
        mixer = self.mixer.replace(" ", "").replace(",", "+")
        return self.run_name or f"{self.data}-{self.train_placement}-{mixer}-seed{self.seed}-{self.fingerprint()}"


def build_model(config: ImageClassificationConfig) -> ViT:
    """The Vision Transformer of a configuration, with weights from torch's global generator."""
    return ViT(**_arguments(config))


def model_without_numbers(config: ImageClassificationConfig) -> ViT:
    """The same on the device "meta": sizes alone, in no time and no memory."""
    with torch.device("meta"):
        return build_model(config)


def _arguments(config: ImageClassificationConfig) -> dict[str, Any]:
    """What the model is built from."""
    mixer = config.mixers[0] if len(config.mixers) == 1 else config.mixers
    return dict(image_size=config.canvas, patch_size=config.patch_size, channels=config.channels,
                classes=config.classes, mixer=mixer, pool=config.pool, absolute=config.absolute_embedding or None,
                encoding=config.encoding, **asdict(config.sizes), **config.options)


_BUILT: set[str] = set()  # the models that could be built: a grid asks for the same one with many seeds and placements

"""Parameters of the image classification experiment, and the model they describe."""

import json
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from translution_lib import models
from translution_lib.experiments.configuration import Configuration
from translution_lib.mixers import MIXERS
from translution_lib.models import Architecture, ViT

# Beside the paper's A, B and C one for a run of seconds on a CPU.
ARCHITECTURES = {"tiny": Architecture(depth=2, dim=32, heads=2, ff=64), **models.ARCHITECTURES}
IMAGE_SIZES = {"digits": 8, "mnist": 28}
CLASSES = 10

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class ImageClassificationConfig(Configuration):
    """A Vision Transformer with any mixer, trained on digits placed on a canvas.

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
        data: "digits" (embedded in scikit-learn) or "mnist" (read from `data_root`).
        data_root: folder with MNIST's four files.
        digit_size: side in pixels that an image is scaled to, an embedded digit by repeated pixels, MNIST bilinearly;
            0 leaves the images as they are.
        canvas: side of the canvas in pixels.
        patch_size: side of a patch in pixels; divides the canvas.
        train_placement: "static" (centred) or "dynamic" (anywhere, new in each epoch); both are evaluated.
        epochs: length of the training.
        batch_size: images in a step.
        learning_rate: AdamW's at the start; follows a cosine to 0, one step an epoch.
        weight_decay: AdamW's.
        train_samples: how many images of the training split; 0 is all.
        test_samples: how many of the test split; 0 is all.
        shift: test images of `shift_class` are also evaluated at every shift along the x axis of up to so many pixels.
        shift_class: the class of these images.
        seed: of the initial weights, the order of the images and their positions.
        device: "cpu", "cuda" or "cuda:1" and so on.
        precision: "float32", or "bfloat16" for autocast.
        threads: torch's threads on the CPU; 0 leaves torch's choice.
        results_dir: folder for the record.
    """

    PLACES: ClassVar[frozenset[str]] = frozenset({"data_root", "results_dir"})

    run_name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=120)
    mixer: str = "translution"
    mixer_options: str = "{}"
    architecture: Literal["tiny", "A", "B", "C"] = "tiny"
    dim: Count = 0
    depth: Count = 0
    heads: Count = 0
    ff: Count = 0
    pool: Literal["cls", "mean"] = "cls"
    data: Literal["digits", "mnist"] = "digits"
    data_root: str = ""
    digit_size: Count = 0
    canvas: Positive = 24
    patch_size: Positive = 6
    train_placement: Literal["static", "dynamic"] = "static"
    epochs: Positive = 8
    batch_size: Positive = 64
    learning_rate: float = Field(3e-3, gt=0, le=1)
    weight_decay: float = Field(0.05, ge=0, le=1)
    train_samples: Count = 0
    test_samples: Count = 0
    shift: Count = 0
    shift_class: int = Field(1, ge=0, lt=CLASSES)
    seed: Count = 0
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    precision: Literal["float32", "bfloat16"] = "float32"
    threads: Count = 0
    results_dir: str = Field("runs", min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "ImageClassificationConfig":
        unknown = sorted({name for name in self.mixers if name not in MIXERS})
        if unknown:
            raise ValueError(f"mixer: got {', '.join(map(repr, unknown))}, expected one of {', '.join(sorted(MIXERS))}")
        if len(self.mixers) not in (1, self.sizes.depth):
            depth = self.sizes.depth
            raise ValueError(f"mixer: got {len(self.mixers)} names, expected 1 or one for each of {depth} layers")
        if self.digit_size and self.digit_size < IMAGE_SIZES[self.data]:
            raise ValueError(f"digit_size: got {self.digit_size}, expected 0 or at least {IMAGE_SIZES[self.data]}")
        if self.canvas < self.image_size:
            raise ValueError(f"canvas: got {self.canvas}, expected at least {self.image_size}, the size of the images")
        if self.canvas % self.patch_size:
            raise ValueError(f"patch_size: got {self.patch_size}, expected a divisor of the canvas, {self.canvas}")
        if self.shift >= self.canvas:
            raise ValueError(f"shift: got {self.shift}, expected less than the canvas, {self.canvas}")
        self._check_model()
        return self

    def _check_model(self) -> None:
        """Build the model without its numbers, so that a wrong option shows before anything runs."""
        options = self.options  # a broken JSON text has its own message
        try:
            with torch.device("meta"):
                build_model(self)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the model cannot be built with mixer {self.mixer!r}, mixer_options {options} and "
                             f"{self.sizes}: {error}") from error

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
        return self.digit_size or IMAGE_SIZES[self.data]

    @property
    def name(self) -> str:
        """`run_name`, or a name made of the parameters."""
        mixer = self.mixer.replace(" ", "").replace(",", "+")
        return self.run_name or f"{self.data}-{self.train_placement}-{mixer}-seed{self.seed}-{self.fingerprint()}"


def build_model(config: ImageClassificationConfig) -> ViT:
    """The Vision Transformer of a configuration, with weights from torch's global generator."""
    mixer = config.mixers[0] if len(config.mixers) == 1 else config.mixers
    return ViT(image_size=config.canvas, patch_size=config.patch_size, channels=1, classes=CLASSES,
               mixer=mixer, pool=config.pool, **asdict(config.sizes), **config.options)

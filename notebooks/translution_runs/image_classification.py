"""Parameters of the image classification experiment, and the model they describe.

Chapter "Static and dynamic MNIST".
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from translution_runs.building import VIT, build_model, check_model, model_without_numbers
from translution_runs.image_checks import check_images, check_pictures
from translution_runs.trained import ARCHITECTURES, Count, Layers, Positive, TrainedConfig, Width

# Side of an image in pixels, its channels, and the number of classes.
SHAPES = {"digits": (8, 1, 10), "mnist": (28, 1, 10), "fashion-mnist": (28, 1, 10), "cifar10": (32, 3, 10),
          "cifar100": (32, 3, 100), "imagenet": (224, 3, 1000)}
TOP5 = " top-5"  # behind the name of a placement: the label is among the five largest logits


def shift_name(by: int, every: bool = False) -> str:
    """The name of a shift in a record: of the images of one class, or of every class."""
    return f"shift {by:+d}" + (", all classes" if every else "")


class ImageClassificationConfig(TrainedConfig):
    """A Vision Transformer with any mixer, or a baseline, trained on small images placed on a canvas.

    Attributes:
        run_name: file name of the record; empty derives one from the parameters.
        model: "vit", or a network to compare it with: "alexnet", "vgg-16", "resnet-18" (which read none of the next
            parameters but dim, the channels of the first layer), "linformer" or "routing-transformer" (no mixer).
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
        data: "digits" (embedded in scikit-learn), "mnist", "fashion-mnist", "cifar10", "cifar100" or "imagenet".
        data_source: "folder" (read from `data_root`), "huggingface" (through the package `datasets`), or for ImageNet
            "generated" (pictures that are drawn when they are read: a stand-in).
        data_root: folder with the files of the data set.
        data_classes: number of classes of other pictures in ImageNet's form; 0 is ImageNet itself.
        digit_size: side in pixels that an image is scaled to, an embedded digit by repeated pixels, others bilinearly;
            0 leaves the images as they are, and ImageNet's at 224.
        augment: "none", or "crop-flip" (random crops after padding, and mirroring) on the device, or for ImageNet
            "resized-crop" (a random part, and mirroring) where the pictures are read.
        canvas: side of the canvas in pixels.
        test_canvas: side of the canvas of the test images, which a ViT reads resized, with its tables by offset; 0 is
            `canvas`.
        patch_size: side of a patch in pixels; divides the canvas.
        train_placement: "static" (centred) or "dynamic" (anywhere, new in each epoch), or "aligned" (whole patches from
            the centre), "near" (up to half a patch from it), "moving" (a frame of a flight).
        test_placements: those that the test images are evaluated in, separated by commas; "static top-5" counts an
            image as right whose label is among the five largest logits.
        outcomes: the record keeps which test images were right, in the order of the set.
        epochs: length of the training.
        batch_size: images in a step, over all processes.
        accumulate: in how many parts a process goes through its share of a step.
        learning_rate: AdamW's at the start; follows a cosine to 0, one step an epoch.
        weight_decay: AdamW's.
        train_samples: how many images of the training split; 0 is all.
        test_samples: how many of the test split; 0 is all.
        held_out: the run is tested on so many images from the end of the training split, which it does not train on,
            and never reads the test split: for choosing a rate. 0 tests on the test split.
        shift: test images of `shift_class` are also evaluated at every shift along the x axis of up to so many pixels.
        shift_class: the class of these images.
        shift_all: so are the test images of all classes.
        seed: of the initial weights, the order of the images and their positions.
        device: "cpu", "cuda" or "cuda:1" and so on.
        precision: "float32", or "bfloat16" for autocast.
        compile: the model is compiled by torch.compile.
        processes: how many train together, on the CPU or on as many GPUs.
        strategy: "ddp" (each process has the whole model) or "fsdp" (each a part of it).
        threads: torch's threads on the CPU; 0 leaves torch's choice.
        workers: processes that read pictures ahead, for each process that trains; 0 reads in the training itself.
        checkpoint_minutes: time between two checkpoints; 0 writes them by steps alone.
        checkpoint_steps: steps between two checkpoints; 0 writes them by time alone.
        results_dir: folder for the record.
    """

    KEEPING: ClassVar[frozenset[str]] = TrainedConfig.KEEPING | {"workers"}

    run_name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=120)
    model: Literal["vit", "alexnet", "vgg-16", "resnet-18", "linformer", "routing-transformer"] = VIT
    mixer: str = "translution"
    mixer_options: str = "{}"
    architecture: Literal["tiny", "A", "B", "C"] = "tiny"
    dim: Width = 0
    depth: Layers = 0
    heads: Width = 0
    ff: Width = 0
    pool: Literal["cls", "mean"] = "cls"
    encoding: Literal["relative", "placed", "pairs"] = "relative"
    absolute_embedding: bool = False
    data: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagenet"] = "digits"
    data_source: Literal["folder", "huggingface", "generated"] = "folder"
    data_root: str = ""
    data_classes: Count = 0
    digit_size: Count = 0
    augment: Literal["none", "crop-flip", "resized-crop"] = "none"
    canvas: Positive = 24
    test_canvas: Count = 0
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
    held_out: Count = 0
    shift: Count = 0
    shift_class: Count = 1
    shift_all: bool = False
    seed: Count = 0
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    processes: Positive = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    threads: Count = 0
    workers: Count = 0
    checkpoint_minutes: float = Field(5.0, ge=0)
    checkpoint_steps: Count = 0
    results_dir: str = Field("runs", min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "ImageClassificationConfig":
        self.check_mixers()
        check_images(self, SHAPES[self.data][0])
        check_pictures(self)
        self.check_steps()
        check_model(self)
        return self

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
        return self.data_classes or SHAPES[self.data][2]

    @property
    def tested(self) -> list[str]:
        """The evaluations of `test_placements`."""
        return [name.strip() for name in self.test_placements.split(",")]

    @property
    def evaluations(self) -> list[str]:
        """All that a record of such a run holds: `tested`, and the shifts of one class, or also of all."""
        reach = range(-self.shift, self.shift + 1) if self.shift else ()
        ways = (False, True) if self.shift_all else (False,)
        return self.tested + [shift_name(by, every) for every in ways for by in reach]

    @property
    def placements(self) -> list[str]:
        """The placements of `test_placements`, each once, whatever is counted in them."""
        return list(dict.fromkeys(name.removesuffix(TOP5) for name in self.tested))

    @property
    def name(self) -> str:
        """`run_name`, or a name made of the parameters."""
        parts = (self.data, self.train_placement, self.method, f"seed{self.seed}", self.fingerprint())
        return self.run_name or "-".join(parts)

    @property
    def method(self) -> str:
        """The mixers, or the model that has none, as a part of a file's name."""
        return self.mixer_part if self.model == VIT else self.model


__all__ = ["ARCHITECTURES", "SHAPES", "ImageClassificationConfig", "build_model", "model_without_numbers", "shift_name"]

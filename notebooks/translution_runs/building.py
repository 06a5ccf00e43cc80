"""The model that a configuration of image classification describes: built, built without numbers, or refused."""

from dataclasses import asdict
from typing import Any, Final

from translution_lib.models import ViT
from translution_lib.models.blocks import without_numbers
from translution_runs.baselines import Baseline
from translution_runs.baselines.convolutional import CONVOLUTIONAL, WIDTH

Config = Any  # an ImageClassificationConfig, whose module imports this one
Model = ViT | Baseline
VIT: Final = "vit"


def build_model(config: Config) -> Model:
    """The model of a configuration, with weights from torch's global generator."""
    return kind(config)(**arguments(config))


def kind(config: Config) -> type[Model]:
    """The class of the model."""
    return ViT if config.model == VIT else Baseline


def model_without_numbers(config: Config) -> Model:
    """The same on the device "meta": sizes alone, in no time and no memory."""
    with without_numbers():
        return build_model(config)


def check_model(config: Config) -> None:
    """Build the model without its numbers, so that a wrong option shows before anything runs.

    Raises:
        ValueError: the model refuses its arguments, or is a baseline with a parameter that it would not read.
    """
    if config.model != VIT:
        refuse_unread(config)
    who = f"mixer {config.mixer!r}" if config.model == VIT else f"model {config.model!r}"
    try:
        config.check_built(who, lambda: arguments(config), kind(config))
    except ModuleNotFoundError as error:
        raise ValueError(f"model: got {config.model!r}, which needs the package {error.name}; "
                         "install translution-book[experiments]") from error


def refuse_unread(config: Config) -> None:
    """Raise a ValueError for parameters of a ViT at a model that does not read them: they would seem to matter."""
    names = ["mixer", "encoding", "absolute_embedding"]
    if config.model in CONVOLUTIONAL:
        names += ["mixer_options", "architecture", "depth", "heads", "ff", "pool"]
    given = [name for name in names if name in config.chosen()]
    if given:
        raise ValueError(f"{given[0]}: got {getattr(config, given[0])!r} with model {config.model!r}, which does not "
                         f"read it; expected it at its default, {config.defaults()[given[0]]!r}")


def arguments(config: Config) -> dict[str, Any]:
    """What the model is built from."""
    picture = {"image_size": config.canvas, "channels": config.channels, "classes": config.classes}
    if config.model in CONVOLUTIONAL:
        return {"name": config.model, **picture, "dim": config.dim or WIDTH}
    sizes = {"patch_size": config.patch_size, "pool": config.pool, **asdict(config.sizes)}
    if config.model != VIT:
        return dict(name=config.model, **picture, dim=sizes.pop("dim"), sizes=sizes, **config.options)
    # dict() refuses an option that a parameter of the run gives already; a display would let it win
    return dict(**picture, **sizes, mixer=config.layers, absolute=config.absolute_embedding or None,
                encoding=config.encoding, **config.options)

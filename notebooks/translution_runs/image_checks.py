"""What a configuration of the image experiment must fulfil, beside the ranges of its parameters."""

from typing import Any

from translution_runs.building import VIT
from translution_runs.data import PLACEMENTS

WHOLE = "static"  # a picture that is as large as the canvas has one place


def check_images(config: Any, smallest: int) -> None:
    """What has to fit: images, canvas, patches, placements and shifts.

    Args:
        config: an `ImageClassificationConfig`, whose module needs this one.
        smallest: the side of an image in its data set, in pixels.

    Raises:
        ValueError: a parameter that does not go with another.
    """
    if config.data != "imagenet" and 0 < config.digit_size < smallest:
        raise ValueError(f"digit_size: got {config.digit_size}, expected 0 or at least {smallest}")
    if config.canvas < config.image_size:
        raise ValueError(
            f"canvas: got {config.canvas}, expected at least {config.image_size}, the size of the images")
    if config.canvas % config.patch_size:
        raise ValueError(f"patch_size: got {config.patch_size}, expected a divisor of the canvas, {config.canvas}")
    check_test_canvas(config)
    if config.shift >= config.canvas:
        raise ValueError(f"shift: got {config.shift}, expected less than the canvas, {config.canvas}")
    if config.shift_all and not config.shift:
        raise ValueError("shift_all: got True with shift 0, expected a shift of at least 1")
    if config.shift_class >= config.classes:
        raise ValueError(f"shift_class: got {config.shift_class}, expected 0 to {config.classes - 1}")
    unknown = [name for name in config.placements if name not in PLACEMENTS]
    if unknown or len(set(config.tested)) < len(config.tested):
        raise ValueError(f"test_placements: got {config.test_placements!r}, expected different names of "
                         f"{', '.join(PLACEMENTS)}, separated by commas")


def check_test_canvas(config: Any) -> None:
    """A second canvas has to take the images, in whole patches, and the model has to follow.

    Raises:
        ValueError: it does not.
    """
    side = config.test_canvas
    if not side:
        return
    if side < config.image_size or side % config.patch_size:
        raise ValueError(f"test_canvas: got {side}, expected 0, or a multiple of the patch, {config.patch_size}, of at "
                         f"least {config.image_size}, the size of the images")
    if config.model != VIT or config.encoding == "pairs" or config.data == "imagenet" or config.shift:
        raise ValueError(f"test_canvas: got {side} with model {config.model!r}, encoding {config.encoding!r}, data "
                         f"{config.data!r} and shift {config.shift}, expected 0; it is for a ViT that knows offsets, "
                         "images on a canvas, and no shift")


def check_pictures(config: Any) -> None:
    """What holds for pictures that are cut to one size when they are read, and only for them.

    Raises:
        ValueError: a parameter that does not go with the data.
    """
    if config.data != "imagenet":
        wrong = {"augment": ("resized-crop",), "data_source": ("generated",)}
        for name, values in wrong.items():
            if getattr(config, name) in values:
                raise ValueError(f"{name}: got {getattr(config, name)!r} for {config.data}, which is for 'imagenet'")
        if config.data_classes:
            raise ValueError(f"data_classes: got {config.data_classes} for {config.data}, expected 0")
        return
    if config.augment == "crop-flip" or config.data_source == "huggingface":
        raise ValueError(f"augment, data_source: got {config.augment!r} and {config.data_source!r} for imagenet, "
                         "expected 'none' or 'resized-crop', and 'folder' or 'generated'")
    if config.held_out:
        raise ValueError(f"held_out: got {config.held_out} for imagenet, whose pictures are streamed, expected 0")
    if config.canvas != config.image_size:
        raise ValueError(f"canvas: got {config.canvas}, expected {config.image_size}, to which imagenet's pictures are "
                         "cut; digit_size cuts them to another size")
    if config.train_placement != WHOLE or config.placements != [WHOLE] or config.shift:
        raise ValueError(f"train_placement, test_placements, shift: got {config.train_placement!r}, "
                         f"{config.test_placements!r} and {config.shift} for imagenet, expected 'static', 'static' or "
                         "'static,static top-5', and 0")

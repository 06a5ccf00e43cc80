"""Accuracy under horizontal shifts: test images of one class, moved pixel by pixel, as in Figure 1 of seed 002.

Only images that keep all their ink at every shift take part, so that each shift is judged on the same images, whole.
"""

import torch
from jaxtyping import Bool, Shaped, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from translution_lib.data import ImageSet, place
from translution_lib.experiments.batches import forward
from translution_lib.experiments.evaluation import summarise
from translution_lib.experiments.image_classification import ImageClassificationConfig
from translution_lib.experiments.records import Evaluation, Record


def shifted(images: Shaped[Tensor, "b ch h w"], by: int) -> Shaped[Tensor, "b ch h w"]:
    """The images moved `by` pixels to the right, to the left where negative.

    Zeros come in on one side; what leaves on the other is lost.
    """
    width = images.shape[-1]
    out = torch.zeros_like(images)
    if abs(by) < width:
        kept = slice(max(0, -by), width - max(0, by))
        out[..., max(0, by):width - max(0, -by)] = images[..., kept]
    return out


def keeps_ink(images: Shaped[Tensor, "b ch h w"], reach: int) -> Bool[Tensor, " b"]:
    """Whether an image loses no pixel other than zero at any shift from −reach to reach."""
    inked = images != 0
    left, right = inked[..., :reach], inked[..., images.shape[-1] - reach:]
    return ~(left.flatten(1).any(1) | right.flatten(1).any(1))


def shiftable(config: ImageClassificationConfig, images: ImageSet) -> UInt8[Tensor, "n ch H W"]:
    """The images of the configured class, centred on canvases, that keep their ink at every configured shift.

    Raises:
        ValueError: there is none.
    """
    centred = place(images.images[images.labels == config.shift_class], config.canvas, "static")
    found = centred[keeps_ink(centred, config.shift)]
    if not len(found):
        raise ValueError(f"shift: got {config.shift}, but none of {len(centred)} images of class {config.shift_class} "
                         f"can move so far on a canvas of {config.canvas} pixels; expected less, or another class")
    return found


@torch.no_grad()
def evaluate_shifts(config: ImageClassificationConfig, model: nn.Module, images: ImageSet) -> dict[str, Evaluation]:
    """Accuracy on the configured class, with Wilson's interval, and loss at every shift from −shift to shift."""
    model.eval()
    centred = shiftable(config, images)
    return {placement(by): evaluate_shift(config, model, centred, by) for by in range(-config.shift, config.shift + 1)}


def evaluate_shift(
    config: ImageClassificationConfig, model: nn.Module, centred: UInt8[Tensor, "n ch H W"], by: int
) -> Evaluation:
    """One shift of centred images of the configured class."""
    right, loss = [], 0.0
    for some in centred.split(config.batch_size):
        inputs = shifted(some, by).to(config.device).float() / 255
        labels = torch.full((len(some),), config.shift_class, device=config.device)
        logits = forward(config, model, inputs)
        right.append((logits.argmax(1) == labels).cpu())
        loss += float(cross_entropy(logits, labels, reduction="sum"))
    return summarise(placement(by), torch.cat(right), loss, config.outcomes)


def placement(by: int) -> str:
    """The name of a shift in a record."""
    return f"shift {by:+d}"


def shift_curve(record: Record) -> dict[int, Evaluation]:
    """The evaluations of a record by shift, from left to right; empty where the run made none."""
    reach = record.parameters.get("shift", 0)
    names = {by: placement(by) for by in range(-reach, reach + 1)} if reach else {}
    return {by: record.evaluations[name] for by, name in names.items()}

"""Accuracy under horizontal shifts: test images of one class or of all, moved pixel by pixel (Horn et al. (2021),
Figure 1).

Only images that keep all their ink at every shift take part, so that each shift is judged on the same images, whole.
"""

import torch
from jaxtyping import Bool, Float, Int64, Shaped, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from translution_runs.data import ImageSet, place
from translution_runs.evaluation import summarise
from translution_runs.image_classification import ImageClassificationConfig, shift_name
from translution_runs.precision import forward
from translution_runs.records import Evaluation, Record


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


def shiftable(config: ImageClassificationConfig,
              images: ImageSet) -> tuple[UInt8[Tensor, "n ch H W"], Int64[Tensor, " n"]]:
    """The images of the configured class, centred on canvases, that keep their ink at every configured shift.

    Where `shift_all` is set, those of all classes. Their labels come with them.

    Raises:
        ValueError: there is none of the configured class.
    """
    own = images.labels == config.shift_class
    wanted = torch.ones_like(own) if config.shift_all else own
    centred, labels = place(images.images[wanted], config.canvas, "static"), images.labels[wanted]
    kept = keeps_ink(centred, config.shift)
    found = centred[kept], labels[kept]
    if not (found[1] == config.shift_class).any():
        count = int(own.sum())
        raise ValueError(f"shift: got {config.shift}, but none of {count} images of class {config.shift_class} can "
                         f"move so far on a canvas of {config.canvas} pixels; expected less, or another class")
    return found


@torch.no_grad()
def evaluate_shifts(config: ImageClassificationConfig, model: nn.Module, images: ImageSet) -> dict[str, Evaluation]:
    """Accuracy on the configured class, with Wilson's interval, and loss at every shift from −shift to shift.

    Where `shift_all` is set, also those on the images of all classes.
    """
    model.eval()
    centred, labels = (part.to(config.device) for part in shiftable(config, images))
    reach = range(-config.shift, config.shift + 1)
    judgements = {by: judged(config, model, shifted(centred, by), labels) for by in reach}  # all, before any is read
    own, found = (labels == config.shift_class).cpu(), {}
    for by, (right, losses) in ((by, (right.cpu(), losses.cpu())) for by, (right, losses) in judgements.items()):
        found[shift_name(by)] = summarise(shift_name(by), right[own], float(losses[own].sum()), config.outcomes)
        if config.shift_all:
            every = shift_name(by, every=True)
            found[every] = summarise(every, right, float(losses.sum()), config.outcomes)
    return found


def judged(config: ImageClassificationConfig, model: nn.Module, images: UInt8[Tensor, "n ch H W"],
           labels: Int64[Tensor, " n"]) -> tuple[Bool[Tensor, " n"], Float[Tensor, " n"]]:
    """Whether each image is right, and its cross-entropy, on the configured device like the images."""
    right, losses = [], []
    for some, target in zip(images.split(config.batch_size), labels.split(config.batch_size), strict=True):
        logits = forward(config, model, some.float() / 255)
        right.append(logits.argmax(1) == target)
        losses.append(cross_entropy(logits, target, reduction="none"))
    return torch.cat(right), torch.cat(losses).double()


def shift_curve(record: Record, every: bool = False) -> dict[int, Evaluation]:
    """The evaluations of a record by shift, from left to right; empty where the run made none.

    Args:
        record: of a run.
        every: of the images of every class, instead of those of the class `shift_class`.
    """
    reach = record.parameters.get("shift", 0)
    names = {by: shift_name(by, every) for by in range(-reach, reach + 1)} if reach else {}
    return {by: record.evaluations[name] for by, name in names.items() if name in record.evaluations}

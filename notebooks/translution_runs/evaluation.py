"""Test images in each placement: how many are right, which, and how sure the proportion is."""

from base64 import b64decode, b64encode

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from translution_runs.batches import in_order
from translution_runs.data import ImageSet, corners
from translution_runs.data.lazy_images import LazyImages
from translution_runs.image_classification import SHAPES, TOP5, ImageClassificationConfig
from translution_runs.intervals import wilson_interval
from translution_runs.precision import forward
from translution_runs.records import Evaluation, Record
from translution_runs.seeds import generator

CONFIDENCE = 0.95
TEST_SEED = 0  # every run is judged on the same positions, whatever its own seed


@torch.no_grad()
def evaluate(
    config: ImageClassificationConfig, model: nn.Module, images: ImageSet | LazyImages
) -> dict[str, Evaluation]:
    """Accuracy, with Wilson's interval, and loss on test images in each of the configured placements."""
    model.eval()
    found = {name: one for placement in config.placements
             for name, one in evaluate_placement(config, model, images, placement).items()}
    return {name: found[name] for name in config.tested}


def evaluate_placement(
    config: ImageClassificationConfig, model: nn.Module, images: ImageSet | LazyImages, placement: str
) -> dict[str, Evaluation]:
    """One placement, by the largest logit and by the five largest; the positions are the same for every run.

    What is found stays on the device to the end, so that nothing waits in between.
    """
    right, among, loss = [], [], torch.zeros((), dtype=torch.float64, device=config.device)
    for inputs, labels in in_order(config, images, placement, evaluation_stream()):
        logits = forward(config, model, inputs)
        right.append(logits.argmax(1) == labels)
        among.append((logits.topk(min(5, logits.shape[1])).indices == labels[:, None]).any(1))
        loss += cross_entropy(logits, labels, reduction="sum")
    return {name: summarise(name, torch.cat(found).cpu(), float(loss), config.outcomes)
            for name, found in ((placement, right), (f"{placement}{TOP5}", among))}


def summarise(placement: str, right: Bool[Tensor, " n"], loss: float, outcomes: bool = False) -> Evaluation:
    """What a record says of test images of which some were right, with a summed cross-entropy."""
    n, correct = len(right), int(right.sum())
    return Evaluation(placement=placement, n=n, correct=correct, accuracy=correct / n, loss=loss / n,
                      interval=wilson_interval(correct, n, CONFIDENCE), confidence=CONFIDENCE,
                      outcomes=pack(right) if outcomes else "")


def evaluation_stream() -> torch.Generator:
    """The stream of the positions of test images."""
    return generator(TEST_SEED, "test positions")


def pack(right: Bool[Tensor, " n"]) -> str:
    """Yes and no of each image as text: eight images a byte, the first in the highest bit, in base64."""
    return b64encode(np.packbits(right.numpy()).tobytes()).decode("ascii")


def unpack(outcomes: str, n: int) -> Bool[Tensor, " n"]:
    """What `pack` was given.

    Raises:
        ValueError: text that does not hold `n` answers.
    """
    packed = np.frombuffer(b64decode(outcomes, validate=True), np.uint8)
    if len(packed) != -(-n // 8):
        raise ValueError(f"outcomes: got {len(packed)} bytes, expected {-(-n // 8)} for {n} images")
    return torch.from_numpy(np.unpackbits(packed, count=n).astype(bool))


def outcomes_by_place(record: Record, placement: str) -> tuple[Int64[Tensor, "n 2"], Bool[Tensor, " n"]]:
    """Where each test image lay (row and column of its corner), and whether it was right.

    Args:
        record: of a run with the parameter `outcomes`.
        placement: one of its evaluations.

    Raises:
        KeyError: no evaluation of that name.
        ValueError: the run did not keep its outcomes.
    """
    found, parameters = record.evaluations[placement], record.parameters
    if not found.outcomes:
        raise ValueError(f"record: {record.name} has no outcomes for {placement!r}; run it with outcomes=True")
    canvas = parameters.get("test_canvas") or parameters["canvas"]  # older records know one canvas alone
    room = canvas - (parameters["digit_size"] or SHAPES[parameters["data"]][0])
    corner = corners(found.n, (room, room), placement, evaluation_stream(), parameters["patch_size"])
    return corner, unpack(found.outcomes, found.n)

"""Training and evaluating a classifier of placed images, in the plainest way that can be killed and resumed."""

from collections.abc import Callable, Iterator
from math import cos, isfinite, pi
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from translution_lib.data import PLACEMENTS, ImageSet, corners, paste
from translution_lib.experiments import checkpoint
from translution_lib.experiments.image_classification import ImageClassificationConfig
from translution_lib.experiments.intervals import wilson_interval
from translution_lib.experiments.records import Epoch, Evaluation
from translution_lib.experiments.seeds import derive, generator

CONFIDENCE = 0.95
TEST_SEED = 0  # every run is judged on the same positions, whatever its own seed


def learning_rate(config: ImageClassificationConfig, epoch: int) -> float:
    """A cosine from the configured rate at epoch 0 towards 0 after the last, constant within an epoch."""
    return config.learning_rate * (1 + cos(pi * epoch / config.epochs)) / 2


def train(
    config: ImageClassificationConfig,
    model: nn.Module,
    images: ImageSet,
    saved: Path | None = None,
    after_epoch: Callable[[Epoch], None] | None = None,
) -> tuple[list[Epoch], int]:
    """Train `model` in place.

    All that is random in an epoch follows from the seed and the epoch's number. A run that goes on from a checkpoint
    therefore ends in the same weights, bit for bit, as one that was never stopped (same device, same threads).

    Args:
        config: the run's parameters.
        model: b 1 H W images to b k logits, on the configured device.
        images: what to place on canvases and train on.
        saved: where a checkpoint is kept after each epoch; None keeps none.
        after_epoch: called with each finished epoch, after its checkpoint is written.

    Returns:
        The epochs, and how often the training was resumed.

    Raises:
        ValueError: a checkpoint of other parameters, or a damaged one.
        FloatingPointError: the loss is no longer finite.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    epochs, resumed = restore(config, model, optimizer, saved)
    steps = -(-len(images) // config.batch_size)
    with tqdm(total=steps * config.epochs, initial=steps * len(epochs), unit="step", mininterval=0.5) as bar:
        for number in range(len(epochs), config.epochs):
            epochs.append(train_epoch(config, model, images, optimizer, number, bar))
            if saved is not None:
                keep(config, model, optimizer, epochs, resumed, saved)
            if after_epoch is not None:
                after_epoch(epochs[-1])
    return epochs, resumed


def train_epoch(
    config: ImageClassificationConfig, model: nn.Module, images: ImageSet, optimizer: torch.optim.Optimizer,
    number: int, bar: Any,
) -> Epoch:
    """One pass over the images, in an order and at positions that the seed and the epoch's number decide."""
    start, rate = perf_counter(), learning_rate(config, number)
    for group in optimizer.param_groups:
        group["lr"] = rate
    torch.manual_seed(derive(config.seed, "epoch", number))  # dropout, where a mixer has it
    order = torch.randperm(len(images), generator=generator(config.seed, "order", number))
    model.train()
    total, correct = torch.zeros(2, dtype=torch.float64, device=config.device)
    positions = generator(config.seed, "positions", number)
    for inputs, labels in batches(config, images, config.train_placement, order, positions):
        logits = forward(config, model, inputs)
        loss = cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
        correct += (logits.argmax(1) == labels).sum()
        bar.update()
    return summary(number, rate, float(total), float(correct), len(images), perf_counter() - start, bar)


def summary(number: int, rate: float, loss: float, correct: float, n: int, seconds: float, bar: Any) -> Epoch:
    """The epoch's figures, shown on the progress bar; numbers count from 1."""
    if not isfinite(loss):
        raise FloatingPointError(f"the training loss is {loss / n} in epoch {number + 1}; try a smaller learning_rate")
    bar.set_postfix(epoch=number + 1, loss=f"{loss / n:.3f}", accuracy=f"{correct / n:.3f}")
    return Epoch(number=number + 1, learning_rate=rate, loss=loss / n, accuracy=correct / n, seconds=seconds)


def batches(
    config: ImageClassificationConfig, images: ImageSet, placement: str, order: Int64[Tensor, " n"],
    positions: torch.Generator,
) -> Iterator[tuple[Float[Tensor, "b ch H W"], Int64[Tensor, " b"]]]:
    """Placed images and their labels on the configured device, a batch at a time, in the given order."""
    room = config.canvas - images.size
    corner = corners(len(images), (room, room), placement, positions)  # at once: the batch size changes no position
    for index in order.split(config.batch_size):
        small = images.pixels(index).to(config.device)
        yield paste(small, (config.canvas, config.canvas), corner[index]), images.labels[index].to(config.device)


def forward(
    config: ImageClassificationConfig, model: nn.Module, inputs: Float[Tensor, "b ch H W"]
) -> Float[Tensor, "b k"]:
    """Logits in float32; with precision "bfloat16" the model runs under autocast."""
    kind = torch.device(config.device).type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=config.precision == "bfloat16"):
        logits: Tensor = model(inputs)
    return logits.float()


@torch.no_grad()
def evaluate(config: ImageClassificationConfig, model: nn.Module, images: ImageSet) -> dict[str, Evaluation]:
    """Accuracy, with Wilson's interval, and loss on test images in each placement."""
    model.eval()
    return {placement: evaluate_placement(config, model, images, placement) for placement in PLACEMENTS}


def evaluate_placement(
    config: ImageClassificationConfig, model: nn.Module, images: ImageSet, placement: str
) -> Evaluation:
    """One placement; the positions are the same for every run."""
    n, correct, loss = len(images), 0, 0.0
    for inputs, labels in batches(config, images, placement, torch.arange(n), generator(TEST_SEED, "test positions")):
        logits = forward(config, model, inputs)
        correct += int((logits.argmax(1) == labels).sum())
        loss += float(cross_entropy(logits, labels, reduction="sum"))
    return Evaluation(placement=placement, n=n, correct=correct, accuracy=correct / n, loss=loss / n,
                      interval=wilson_interval(correct, n, CONFIDENCE), confidence=CONFIDENCE)


def keep(
    config: ImageClassificationConfig, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: list[Epoch],
    resumed: int, saved: Path,
) -> None:
    """Write the checkpoint."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "resumed": resumed,
             "epochs": [epoch.model_dump() for epoch in epochs]}
    checkpoint.save(saved, config.fingerprint(), state)


def restore(
    config: ImageClassificationConfig, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Path | None
) -> tuple[list[Epoch], int]:
    """Put a checkpoint's state into model and optimizer; the epochs behind it and how often it was resumed."""
    state = checkpoint.load(saved, config.fingerprint()) if saved is not None else None
    if state is None:
        return [], 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return [Epoch(**epoch) for epoch in state["epochs"]], state["resumed"] + 1

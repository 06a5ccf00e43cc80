"""A whole training step of the architectures of Tables 2, 3 and 7, for self-attention, LoR-Translution and Translution.

    python benchmarks/training_step.py --batch 4 --write results/benchmarks/training-step.json
    python benchmarks/training_step.py --device cuda --dtype bfloat16 --batch 256 --batch-text 8 \
        --write results/benchmarks/training-step-cuda.json

One step is forward, loss, backward and an update by Adam. Random inputs stand for the data, which changes no time. The
paper's batches are 256 images and 8 texts. A model that this machine's memory cannot hold is listed as not run.
"""

from dataclasses import asdict

import measuring
import system_memory
import torch
from torch.nn.functional import cross_entropy

from translution_lib import GPT, ViT, cost
from translution_lib.models import GPTConfig, ViTConfig
from translution_lib.models.blocks import ARCHITECTURES

MODELS = (
    *({"table": 2, "model": f"A/{patch}", "image": 84, "channels": 1, "classes": 10} for patch in (12, 7)),
    *({"table": 3, "model": f"{letter}/{patch}", "image": 224, "channels": 3, "classes": 1000}
      for patch in (56, 32, 16) for letter in "ABC"),
    *({"table": 7, "model": letter, "context": context} for letter, context in
      (("A", 160), ("B", 160), ("C", 160), ("A", 512), ("B", 512))),
)
"""The rows of the tables; images have a side in pixels, texts a length in tokens."""
QUICK = ({"table": 3, "model": "A/112", "image": 224, "channels": 3, "classes": 10},
         {"table": 7, "model": "A", "context": 8})
VOCABULARY = 50257
MIXERS = ("self-attention", "lor-translution", "translution")


def config(task: dict) -> ViTConfig | GPTConfig:
    """Return a row's configuration. The paper's self-attention adds a learned absolute embedding."""
    letter, _, patch = task["model"].partition("/")
    size = asdict(ARCHITECTURES[letter])
    rest = {"mixer": (task["mixer"],) * size["depth"], "absolute": task["mixer"] == "self-attention"}
    if "context" in task:
        return GPTConfig(VOCABULARY if task["context"] > 8 else 64, task["context"], **size, **rest)
    return ViTConfig(task["image"], int(patch), task["channels"], task["classes"], **size, **rest)


def tasks(args) -> list[dict]:
    rows = QUICK if args.quick else [m for m in MODELS if not args.models or name(m) in args.models]
    found = []
    for mixer in args.mixers:
        for model in rows:
            batch = 1 if args.quick else args.batch_text if "context" in model else args.batch
            task = {"kind": "training-step", "name": name(model), **model, "mixer": mixer, "batch": batch}
            found.append({**task, **needs(task)})
    return found


def name(model: dict) -> str:
    return f"GPT-{model['model']}-{model['context']}" if "context" in model else f"ViT-{model['model']}"


def needs(task: dict) -> dict:
    """Return a lower bound of the memory of a step: 16 bytes for each parameter, and what the mixers keep."""
    made = config(task)
    saved = cost.saved_bytes(made, task["batch"])
    logits = 8 * task["batch"] * task.get("context", 0) * VOCABULARY
    return {"parameters": cost.parameters(made), "macs": cost.macs_true(made, attended_only=True),
            "needs_bytes": 16 * cost.parameters(made) + saved + logits}


def build(task: dict) -> torch.nn.Module:
    """Return the model of a row on its device."""
    values = {k: v for k, v in vars(config(task)).items() if k != "options"}
    with torch.device(task["device"]):
        return (GPT if "context" in task else ViT)(**values)


def measure(task: dict) -> dict:
    model = build(task)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs, targets = data(task)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with measuring.precision(task):
            loss = cross_entropy(model(inputs).flatten(0, -2), targets)
        loss.backward()
        optimizer.step()

    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    peak = system_memory.peak_bytes(step, task["device"]) + weights
    times = measuring.best_of(step, task)
    return {"peak_bytes": peak, **times, "samples_per_second": task["batch"] / times["seconds"]}


def data(task: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs and targets of a row's shape."""
    if "context" in task:
        top = config(task).vocabulary
        ids = torch.randint(top, (task["batch"], task["context"] + 1), device=task["device"])
        return ids[:, :-1], ids[:, 1:].flatten()
    shape = (task["batch"], task["channels"], task["image"], task["image"])
    images = torch.randn(shape, device=task["device"])
    return images, torch.randint(task["classes"], (task["batch"],), device=task["device"])


def finish(record: dict) -> None:
    for row in record["rows"]:
        print(measuring.text(row, "name", "mixer", "batch"))


def options():
    p = measuring.parser(__doc__)
    p.add_argument("--batch", type=int, default=4, help="images in a step; the paper has 256")
    p.add_argument("--batch-text", type=int, default=1, help="texts in a step; the paper has 8")
    p.add_argument("--mixers", nargs="+", choices=MIXERS, default=list(MIXERS))
    p.add_argument("--models", nargs="+", choices=[name(m) for m in MODELS], help="only these")
    return p


if __name__ == "__main__":
    measuring.main("training-step", options(), tasks, measure, finish)

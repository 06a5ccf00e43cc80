"""How one Translution layer's time and memory grow with tokens, channels, batch and heads; and memory by form.

    python benchmarks/scaling.py --write results/benchmarks/scaling.json

Each sweep changes one size of ViT-A/12's layer (50 tokens, 192 channels, 3 heads, batch 8) and runs forward and
backward of the grouped form. The sweep "form" compares the peak memory of the literal gather, of the grouped
products that keep the vectors of all pairs, and of those that compute them again, against the number of tokens at
batch 1.
"""

from contextlib import nullcontext

import measuring
import system_memory
import torch

from translution_lib import Translution, backend, cost, offsets

BASE = {"grid": 7, "batch": 8, "dim": 192, "heads": 3}
SWEEPS = {"grid": (2, 4, 7, 10, 14), "dim": (48, 96, 192, 384), "batch": (1, 2, 4, 8, 16, 32, 64),
          "heads": (1, 2, 3, 6)}
FORMS = {"gather": "gather", "keep": "pairs", "recompute": "fast"}
"""The forms of the sweep over forms, and what ``cost`` calls them."""
QUICK_BASE = {"grid": 2, "batch": 2, "dim": 12, "heads": 3}
QUICK_SWEEPS = {"grid": (2, 3), "dim": (12,), "batch": (1, 2), "heads": (1, 3)}


def tasks(args) -> list[dict]:
    base, sweeps = (QUICK_BASE, QUICK_SWEEPS) if args.quick else (BASE, SWEEPS)
    found = [{"kind": "sweep", "sweep": name, "form": "default", **base, name: value}
             for name, values in sweeps.items() for value in values]
    found += [{"kind": "sweep", "sweep": "form", **base, "batch": 1, "grid": grid, "form": form}
              for form in FORMS for grid in sweeps["grid"]]
    return [expected(task) for task in found]


def expected(task: dict) -> dict:
    """Add what the closed formula says is kept, and for the gather the memory that it needs."""
    made = cost.layer.named("translution", offsets((task["grid"],) * 2, cls=True), task["dim"], task["heads"])
    saved = made.saved_bytes(task["batch"], form=FORMS.get(task["form"], "fast"))
    needs = {"needs_bytes": int(2 * saved)} if task["form"] == "gather" else {}
    return {**task, "tokens": made.tokens, "pairs": made.attended, "saved_bytes": saved, **needs}


def measure(task: dict) -> dict:
    layer = Translution(offsets((task["grid"],) * 2, cls=True), task["dim"], task["heads"]).to(task["device"])
    x = torch.randn(task["batch"], task["tokens"], task["dim"], device=task["device"], requires_grad=True)
    direction = torch.ones_like(x)
    how = {"gather": {"name": "definition"}, "keep": {"name": "torch", "keep": True}}.get(task["form"])
    with backend(**how) if how else nullcontext():
        step = measuring.layer_step(layer, x, direction, task)
        measuring.load_libraries(task)
        return {"peak_bytes": system_memory.peak_bytes(step, task["device"]), **measuring.best_of(step, task)}


def finish(record: dict) -> None:
    for row in record["rows"]:
        print(measuring.text(row, "sweep", "form", "grid", "dim", "batch", "heads"))


if __name__ == "__main__":
    measuring.main("scaling", measuring.parser(__doc__), tasks, measure, finish)

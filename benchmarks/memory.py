"""Predicted and measured peak memory of whole training steps.

    python benchmarks/memory.py                                  # every case, a process of its own for each
    python benchmarks/memory.py --cases vit-translution gpt-self-attention
    python benchmarks/memory.py --paper                          # architectures of the paper at its batch, counted only
    python benchmarks/memory.py --write results/benchmarks/memory.json

``predicted`` is ``cost.memory``, which counts one block of each kind. ``counted`` is the exact peak of all tensors of
two steps with AdamW. ``resident`` is what the process gains at its peak (VmHWM above VmRSS at the start, Linux only);
the allocator is told to hand back what is freed (the MALLOC settings below), otherwise it keeps much of it and the
number means little. ``--paper`` counts on torch's meta device, where nothing is computed and no memory is needed, for
the methods whose layers differ from torch's own.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from translution_book.facts import fits

from translution_lib import __version__, backend, cost
from translution_lib.cost.tracking import training
from translution_lib.models import GPTConfig, ViTConfig

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def vit(mixer: str, dim: int, depth: int) -> ViTConfig:
    return ViTConfig(56, 8, 3, 100, dim, depth, 3, 4 * dim, (mixer,) * depth)


def gpt(mixer: str, context: int, vocabulary: int, depth: int) -> GPTConfig:
    return GPTConfig(vocabulary, context, 96, depth, 3, 384, (mixer,) * depth)


CASES: dict[str, tuple] = {
    "vit-translution": (vit("translution", 96, 3), 96, False),
    "vit-translution-weights": (vit("translution", 96, 3), 2, False),
    "vit-translution-checkpoint": (vit("translution", 96, 3), 96, True),
    "vit-lor": (vit("lor-translution", 96, 4), 112, False),
    "vit-self-attention": (vit("self-attention", 192, 6), 48, False),
    "vit-self-attention-checkpoint": (vit("self-attention", 192, 12), 96, True),
    "gpt-translution": (gpt("translution", 96, 2000, 3), 8, False),
    "gpt-self-attention": (gpt("self-attention", 128, 12000, 3), 8, False),
}
"""By name: configuration, batch, whether blocks are computed again in backward."""


def status(field: str) -> int:
    """Return a field of this process's memory, such as VmRSS or VmHWM, in bytes."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith(field)).split()[1]) * 1024


def resident(config: ViTConfig | GPTConfig, batch: int, checkpoint: bool) -> int | None:
    """Return the bytes that this process gains at the peak of two steps, or None where the system does not tell."""
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return None
    training(replace(config, depth=1, mixer=config.mixer[:1], dim=12, ff=12), 1, checkpoint=checkpoint)()   # loads code
    run = training(config, batch, checkpoint=checkpoint)
    clear.write_text("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def measure(name: str) -> dict:
    """Measure one case in this process, the resident peak first, on fresh memory."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config, batch, checkpoint = CASES[name]
    with backend("torch"):
        gained = resident(config, batch, checkpoint)
    predicted = cost.memory(config, batch, checkpoint=checkpoint, device="cpu")
    return {"case": name, "batch": batch, "checkpoint": checkpoint, "moment": predicted.moment,
            "predicted": predicted.total, "counted": cost.count_memory(config, batch, checkpoint=checkpoint),
            "resident": gained}


def in_a_process(name: str) -> dict:
    command = [sys.executable, __file__, "--measure", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **MALLOC})
    show(row := json.loads(done.stdout))
    return row


def paper(largest: float) -> list[dict]:
    """Count the architectures of the paper whose prediction is at most so many bytes, on the meta device."""
    rows = []
    for fit in fits():
        config = fit.config
        for checkpoint in (False, True):
            needed = cost.memory(config, fit.batch, checkpoint=checkpoint, device="cpu")
            if fit.method == "self-attention" or needed.total > largest:
                continue
            counted = cost.count_memory(config, fit.batch, checkpoint=checkpoint, device="meta")
            rows.append({"case": f"{fit.subject} {fit.method}", "batch": fit.batch, "checkpoint": checkpoint,
                         "moment": needed.moment, "predicted": needed.total, "counted": counted, "resident": None})
            show(rows[-1])
    return rows


def show(row: dict) -> None:
    def against(value: int | None) -> str:
        return "       —         " if value is None else f"{value / 2**20:9.1f} ({row['predicted'] / value - 1:+6.1%})"

    print(f"{row['case']:32s} b {row['batch']:3d} {'checkpoint' if row['checkpoint'] else '':10s} predicted "
          f"{row['predicted'] / 2**20:9.1f} MiB   counted {against(row['counted'])}   resident "
          f"{against(row['resident'])}", flush=True)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    p.add_argument("--paper", action="store_true", help="count the paper's architectures at its batch")
    p.add_argument("--largest", type=float, default=8, help="with --paper: leave out what needs more GB than this")
    p.add_argument("--write", type=Path, help="file for the record")
    p.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    return p


def main() -> None:
    args = parser().parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    rows = paper(args.largest * 1e9) if args.paper else [in_a_process(name) for name in args.cases]
    seen = [(row["predicted"], row[key]) for row in rows for key in ("counted", "resident") if row[key]]
    worst = max(abs(predicted / value - 1) for predicted, value in seen)
    print(f"largest deviation {worst:.1%}")
    if args.write:
        versions = {"python": platform.python_version(), "torch": torch.__version__, "translution_lib": __version__}
        record = {"benchmark": "memory", "kind": "paper" if args.paper else "measured", "optimizer": "adamw",
                  "dtype": "float32", "rows": rows, "worst": worst, "versions": versions,
                  "machine": platform.machine(), "malloc": MALLOC}
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

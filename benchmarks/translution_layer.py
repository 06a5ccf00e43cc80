"""Time and peak memory of one Translution layer, forward and backward: grouped products against the literal gather.

    python benchmarks/translution_layer.py                    # ViT-A/12's layer: N = 50, C = 192, 3 heads, batch 8
    python benchmarks/translution_layer.py --grid 4 --batch 16 --write results/benchmarks/layer-vit-a56.json

Every form runs in a process of its own, so that one does not leave memory to the other. Time is the best of several
runs; memory is the peak above what the process held before the first step. Both forms start from the same seed, and the
sums of their outputs and gradients are compared.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from translution_lib import Translution, __version__, definition, offsets

FORMS = ("literal", "grouped")


def resident(field: str) -> int:
    """Return a field of this process's memory, such as VmRSS or VmHWM, in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(row for row in status.read_text().splitlines() if row.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Start the peak anew, where the system allows it."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def step(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """Run forward and backward."""
    layer.zero_grad(set_to_none=True)
    x.grad = None
    layer(x).square().mean().backward()


def sums(layer: torch.nn.Module, x: torch.Tensor) -> list[float]:
    """Return sums over the gradients that tell whether two forms agree."""
    return [float(p.grad.double().abs().sum()) for p in (x, *layer.parameters()) if p.grad is not None]


def measure(args: argparse.Namespace) -> dict:
    """Measure one form in this process."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    layer = Translution(offsets((args.grid, args.grid), cls=True), args.dim, args.heads)
    x = torch.randn(args.batch, layer.relations.n, args.dim, requires_grad=True)
    times = []
    with definition() if args.form == "literal" else nullcontext():
        forget_peak()
        before = resident("VmRSS")
        step(layer, x)
        peak = resident("VmHWM") - before
        checks = sums(layer, x)
        for _ in range(args.runs if args.form == "grouped" else args.literal_runs):
            start = time.perf_counter()
            step(layer, x)
            times.append(time.perf_counter() - start)
    return {"form": args.form, "seconds": min(times), "all_seconds": times, "peak_bytes": peak, "sums": checks}


def run_form(form: str, argv: list[str]) -> dict:
    command = [sys.executable, __file__, "--form", form, *argv]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def compare(args: argparse.Namespace, argv: list[str]) -> dict:
    """Measure both forms and put them side by side."""
    literal, grouped = (run_form(form, argv) for form in FORMS)
    worst = max(abs(a / b - 1) for a, b in zip(literal["sums"], grouped["sums"], strict=True))
    if worst > 1e-3:
        raise SystemExit(f"the two forms disagree by {worst:.1e}: the comparison is void")
    sizes = {k: getattr(args, k) for k in ("grid", "batch", "dim", "heads", "threads")}
    return {"benchmark": "translution-layer", "tokens": args.grid ** 2 + 1, **sizes, "dtype": "float32",
            "literal": literal, "grouped": grouped, "speed_ratio": literal["seconds"] / grouped["seconds"],
            "memory_ratio": literal["peak_bytes"] / grouped["peak_bytes"], "disagreement": worst,
            "versions": {"python": platform.python_version(), "torch": torch.__version__,
                         "translution_lib": __version__},
            "machine": platform.machine()}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--grid", type=int, default=7, help="patches per side; a CLS token is added")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--dim", type=int, default=192)
    p.add_argument("--heads", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=10, help="timed runs of the grouped form")
    p.add_argument("--literal-runs", type=int, default=2, help="timed runs of the literal form")
    p.add_argument("--write", type=Path, help="file for the record")
    p.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    return p


def main() -> None:
    args = parser().parse_args()
    if args.form:
        print(json.dumps(measure(args)))
        return
    report = compare(args, sys.argv[1:])
    for form in FORMS:
        r = report[form]
        print(f"{form:8s} {r['seconds']:9.4f} s   {r['peak_bytes'] / 2**20:10.1f} MiB above the start")
    print(f"grouped is {report['speed_ratio']:.1f} times as fast, in 1/{report['memory_ratio']:.0f} of the memory")
    if args.write:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

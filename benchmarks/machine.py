"""The ceilings of this machine: the rate of matrix products by size, and the bandwidth of memory.

    python benchmarks/machine.py --write results/benchmarks/machine.json

The roofline of chapter 9 stands on these numbers. A product (m × k)·(k × n) counts 2·m·k·n operations. A copy counts
one read and one write per number, the triad a = b + s·c two reads and one write, a gather of rows one of each.
"""

import measuring
import torch

SIDES = (32, 64, 128, 256, 512, 1024, 2048)
ROWS = (8, 16, 64, 256, 1024, 4096)         # rows against one matrix of a ViT-A layer, 192 × 192
NUMBERS = tuple(2**k for k in (12, 15, 18, 21, 24, 26))


def tasks(args) -> list[dict]:
    sides, rows, numbers = (SIDES[:2], ROWS[:2], NUMBERS[:2]) if args.quick else (SIDES, ROWS, NUMBERS)
    return ([{"kind": "gemm", "m": s, "k": s, "n": s} for s in sides]
            + [{"kind": "gemm", "m": m, "k": 192, "n": 192} for m in rows]
            + [{"kind": kind, "numbers": n} for kind in ("copy", "triad", "gather") for n in numbers])


def measure(task: dict) -> dict:
    if task["kind"] == "gemm":
        return {"gflops": measuring.gemm(task["m"], task["k"], task["n"], task)}
    run = {"copy": measuring.copy_rate, "triad": measuring.triad_rate, "gather": gather_rate}[task["kind"]]
    return {"gb_per_s": run(task["numbers"], task)}


def gather_rate(numbers: int, task: dict, width: int = 64) -> float:
    """Return the traffic of ``index_select`` of rows in random order, one read and one write per number."""
    x = measuring.random(numbers // width, width, task=task)
    out, order = torch.empty_like(x), torch.randperm(len(x), device=x.device)
    return measuring.rate(2 * x.numel() * x.element_size(), lambda: torch.index_select(x, 0, order, out=out), task)


def finish(record: dict) -> None:
    for row in record["rows"]:
        if row["status"] != "measured":
            print(f"{row['kind']}: {row['status']}, {row['reason']}")
        elif row["kind"] == "gemm":
            m, k, n = (row[side] for side in "mkn")
            print(f"product {m:5d} × {k:4d} · {k:4d} × {n:4d}  {row['gflops']:9.1f} GFLOP/s")
        else:
            print(f"{row['kind']:7s} of {row['numbers']:9d} numbers      {row['gb_per_s']:9.1f} GB/s")


if __name__ == "__main__":
    measuring.main("machine", measuring.parser(__doc__), tasks, measure, finish)

"""What the benchmarks share: a plan of tasks, each measured in a process of its own, and the record of the results.

A benchmark names its tasks and says how one of them is measured; :func:`main` does the rest. Time is the best of
several runs. Memory is the peak of the first step above what the process held before it; libraries are loaded before
that. On a GPU, whose memory torch itself counts, one process serves all tasks until one of them takes it down: a
process of its own for each would spend seconds on starting.
"""

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from math import inf, log
from pathlib import Path
from statistics import linear_regression
from typing import Any

import torch
from system_memory import memory_available
from tqdm import tqdm
from translution_runs.environment import commit, processor, versions
from translution_runs.files import write_json

from translution_lib import Translution, backend, offsets

SCHEMA = 1
GIB = 2**30
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=10, help="timed runs of each measurement, of which the best counts")
    p.add_argument("--seconds", type=float, default=20, help="no further run of a measurement starts after this time")
    p.add_argument("--device", default="cpu", help="cpu or cuda")
    p.add_argument("--dtype", choices=DTYPES, default="float32", help="bfloat16 runs under autocast")
    p.add_argument("--huge-pages", action="store_true", help="memory in pages of 2 MiB, where the system grants them")
    p.add_argument("--quick", action="store_true", help="tiny sizes: shows that the command works, measures nothing")
    p.add_argument("--limit", type=float, default=0, help="end after so many seconds, with what is measured by then")
    p.add_argument("--write", type=Path, help="file for the record")
    return p


def main(name: str, p: argparse.ArgumentParser, tasks: Callable, measure: Callable, finish: Callable) -> None:
    """Measure all tasks, print what ``finish`` says and write the record.

    Args:
        name: the benchmark's name in its record.
        p: a parser made by :func:`parser`.
        tasks: takes the arguments, gives a list of dicts that name and size one measurement each.
        measure: takes one task, with the common options added, and gives a dict of results; runs in a new process.
        finish: takes the record, may add a summary to it, and prints.
    """
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.huge_pages:
        os.environ["THP_MEM_ALLOC_ENABLE"] = "1"    # torch reads it; the processes of the tasks inherit it
    common = {"threads": args.threads, "runs": 1 if args.quick else args.runs, "seconds": args.seconds,
              "device": args.device, "dtype": args.dtype}
    planned = [{"kind": "ceilings", "quick": args.quick}, *tasks(args)]
    parameters = {k: v for k, v in vars(args).items() if k not in ("write", "authors", "limit")}
    record = {"benchmark": name, "schema": SCHEMA, "status": "incomplete", "parameters": parameters, "rows": [],
              "ceilings": {}, "threads": args.threads, "versions": versions(), "source": commit(),
              "processor": device_name(args.device)}
    with Worker(common, measure, args.limit) as worker:
        for k, task in enumerate(tqdm(planned, desc=name, unit="task", disable=None)):
            row = run_here(task, common, measure) if args.quick and k else worker.run(task)
            record = {**record, **({"rows": [*record["rows"], row]} if k else {"ceilings": row})}
            write(record, args.write)
    record["status"] = "measured"
    finish(record)
    write(record, args.write)


def write(record: dict, path: Path | None) -> None:
    """Write what is measured so far: whole, or not at all."""
    if path is not None:
        write_json(path, record)


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else processor()


class Worker:
    """Measures tasks in processes beside this one, forked from one that has loaded the libraries and computed nothing.

    Args:
        common: the options that every task has.
        measure: as in :func:`main`.
        limit: seconds after which no task is begun and the running one is ended; 0 for none.
    """

    def __init__(self, common: dict, measure: Callable, limit: float = 0) -> None:
        self.common, self.measure = common, measure
        self.end = time.monotonic() + limit if limit else inf
        self.process: Any = None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def run(self, task: dict) -> dict:
        """Measure a task, unless the memory is too small for it or no time is left."""
        needs, room = task.get("needs_bytes", 0), memory_available(self.common["device"])
        public = {k: v for k, v in task.items() if k != "authors"}
        if needs > 0.9 * room:
            reason = f"would need about {needs / GIB:.0f} GiB, {room / GIB:.0f} GiB are free"
            return {**public, "status": "not run", "reason": reason}
        if time.monotonic() >= self.end:
            return {**public, "status": "not run", "reason": "no time was left"}
        found = {"status": "measured", **self.ask({**task, **self.common})}
        if found["status"] == "failed" or not self.common["device"].startswith("cuda"):
            self.stop()                                             # an error may have spoilt what it holds
        return {**public, **found}

    def ask(self, task: dict) -> dict:
        """What a process answers; that it ended, or was ended, is an answer too."""
        if self.process is None:
            self.start()
        try:
            self.pipe.send(task)
            if self.pipe.poll(None if self.end == inf else max(0.0, self.end - time.monotonic())):
                return self.pipe.recv()
            return {"status": "failed", "reason": "no time was left"}
        except (EOFError, OSError):
            return {"status": "failed", "reason": "the process ended without an answer"}

    def start(self) -> None:
        """Start a process."""
        context = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
        context.set_forkserver_preload(["torch", "translution_lib", "translution_runs"])
        self.pipe, there = context.Pipe()
        # No daemon, which could not start the processes that read pictures; it ends when the pipe does.
        self.process = context.Process(target=_serve, args=(self.measure, there))
        self.process.start()
        there.close()                                               # so that a process that dies ends the wait

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()                                     # it has nothing to lose, and may hang
            self.process.join()
            self.pipe.close()
            self.process = None


def run_here(task: dict, common: dict, measure: Callable) -> dict:
    """Measure one tiny task in this process."""
    torch.manual_seed(0)
    return {**task, "status": "measured", **measure({**task, **common})}


def _serve(measure: Callable, tasks) -> None:
    """Measure in this process what is asked for, until nobody asks any more."""
    with suppress(EOFError):
        while True:
            tasks.send(_answer(tasks.recv(), measure))


def _answer(task: dict, measure: Callable) -> dict:
    """The result of one task, or what went wrong."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    try:
        with backend("torch" if task["device"] == "cpu" else "auto"):      # what is timed does not choose by time
            return ceilings(task) if task.get("kind") == "ceilings" else measure(task)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rsplit("/", 1)[-1][:200]
        return {"status": "failed", "reason": reason}
    finally:
        gc.collect()                                                # frames of an error, and what they hold
        if task["device"].startswith("cuda"):
            torch.cuda.empty_cache()


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def best_of(step: Callable, task: dict, repeat: int = 1, warm: bool = False) -> dict:
    """Return the best time of one step among several runs, and all times; every run repeats the step.

    One step goes first and is not timed, unless a ``warm`` one has run already.
    """
    if not warm:
        step()
    times: list[float] = []
    while len(times) < task["runs"] and (len(times) < 2 or sum(times) * repeat < task["seconds"]):
        synchronize(task["device"])
        start = time.perf_counter()
        for _ in range(repeat):
            step()
        synchronize(task["device"])
        times.append((time.perf_counter() - start) / repeat)
    return {"seconds": min(times), "all_seconds": times}


def precision(task: dict) -> AbstractContextManager:
    """Return the context in which a task's layers run."""
    if task["dtype"] == "float32":
        return nullcontext()
    return torch.autocast(task["device"].split(":")[0], dtype=DTYPES[task["dtype"]])


def rate(flops: float, step: Callable, task: dict) -> float:
    """Return the rate of a step of so many operations, in 10⁹ per second; short steps are repeated within a run."""
    first = best_of(step, {**task, "runs": 2})["seconds"]
    repeat = max(1, min(1000, int(0.05 / max(first, 1e-7)))) if task["runs"] > 1 else 1
    return flops / best_of(step, task, repeat)["seconds"] / 1e9


def random(*shape: int, task: dict) -> torch.Tensor:
    """Return random numbers in the type and on the device of a task."""
    return torch.randn(*shape, device=task["device"], dtype=DTYPES[task["dtype"]])


def gemm(m: int, k: int, n: int, task: dict) -> float:
    """Return the rate of (m × k)·(k × n), counting 2·m·k·n operations."""
    a, b, out = random(m, k, task=task), random(k, n, task=task), random(m, n, task=task)
    return rate(2 * m * k * n, lambda: torch.mm(a, b, out=out), task)


def copy_rate(numbers: int, task: dict) -> float:
    """Return the memory traffic of a copy, in 10⁹ bytes per second: one read and one write per number."""
    a, b = random(numbers, task=task), random(numbers, task=task)
    return rate(2 * numbers * a.element_size(), lambda: b.copy_(a), task)


def triad_rate(numbers: int, task: dict) -> float:
    """Return the memory traffic of a = b + s·c, in 10⁹ bytes per second: two reads and one write per number."""
    a, b, c = (random(numbers, task=task) for _ in range(3))
    return rate(3 * numbers * a.element_size(), lambda: torch.add(b, c, alpha=0.5, out=a), task)


def ceilings(task: dict) -> dict:
    """Return what the machine can do at best: its largest rate of a matrix product and its memory bandwidth."""
    large = (8192, 2**29) if task["device"].startswith("cuda") else (2048, 2**26)
    side, numbers = (64, 2**12) if task["quick"] else large
    return {"gemm_gflops": gemm(side, side, side, task), "copy_gb_per_s": copy_rate(numbers, task),
            "triad_gb_per_s": triad_rate(numbers, task), "gemm_side": side, "stream_numbers": numbers}


def text(row: dict, *columns: str) -> str:
    """Return a row's results as a line: its time and memory, or why there are none."""
    cells = [row.get(column, "") for column in columns]
    head = "  ".join(f"{cell:>6}" if isinstance(cell, int) else f"{cell:<16}" for cell in cells)
    if row["status"] != "measured":
        return f"{head}  {row['status']}: {row['reason']}"
    return f"{head}  {row['seconds']:9.4f} s  {row['peak_bytes'] / 2**20:9.1f} MiB"


def load_libraries(task: dict) -> None:
    """Run a tiny layer, so that what is loaded once is not counted as a layer's memory."""
    tiny = Translution(offsets((2, 2), cls=True), 64, 1).to(task["device"])
    x = torch.randn(8, 5, 64, device=task["device"], requires_grad=True)
    layer_step(tiny, x, torch.ones_like(x), task)()


def layer_step(layer: torch.nn.Module, x: torch.Tensor, direction: torch.Tensor, task: dict):
    """Return forward and backward as a function without arguments."""
    def step() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        with precision(task):
            y = layer(x)
        y.float().backward(direction)
    return step


def sums(layer: torch.nn.Module, x: torch.Tensor, direction: torch.Tensor) -> list[float]:
    """Return numbers by which two forms of one layer can be compared: sums of the gradients."""
    assert x.grad is not None
    return [float((x.grad.double() * direction.double()).sum()),
            *(float(p.grad.double().square().sum()) for p in layer.parameters() if p.grad is not None)]


def disagreement(ours: list[float], theirs: list[float], whose: str, limit: float = 2e-3) -> float:
    """Return the largest relative difference of two lists of sums; stop if they do not agree."""
    worst = max(abs(a - b) / max(abs(a), 1e-30) for a, b in zip(ours, theirs, strict=True))
    if worst > limit:
        raise SystemExit(f"two forms of {whose} results disagree by {worst:.1e}: the comparison is void")
    return worst


def growth(rows: list[dict], size: str) -> dict:
    """Return the slopes of straight lines through the logarithms: time, and memory, as powers of a size.

    ``last_seconds`` is the slope between the two largest sizes, where what every call costs anyway weighs least.
    """
    x, y = ([log(max(row[key], 1e-9)) for row in rows] for key in (size, "seconds"))
    weights = [log(max(row["peak_bytes"], 1)) for row in rows]
    return {"seconds": linear_regression(x, y).slope, "peak_bytes": linear_regression(x, weights).slope,
            "last_seconds": (y[-1] - y[-2]) / (x[-1] - x[-2]), "from": rows[0][size], "to": rows[-1][size]}


def growth_line(name: str, fit: dict) -> str:
    """Return a fit of :func:`growth` as a line."""
    return (f"{name}: {fit['from']} to {fit['to']} tokens: time grows as n^{fit['seconds']:.2f} "
            f"(the last step n^{fit['last_seconds']:.2f}), memory as n^{fit['peak_bytes']:.2f}")


def bar(record: dict, what: str, value: float, relation: str, bound: float) -> None:
    """Print whether a result reaches what is asked of it, and add it to the record."""
    met = value <= bound if relation == "at most" else value >= bound
    record.setdefault("bars", []).append({"what": what, "value": value, relation.replace(" ", "_"): bound, "met": met})
    print(f"bar: {what} {relation} {bound:g}: {value:.3g}, {'met' if met else 'not met'}")

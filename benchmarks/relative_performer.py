"""The position heads of strategy 2 in three forms, forward and backward, and how the fast one grows with the grid.

    python benchmarks/relative_performer.py --write results/benchmarks/relative-performer.json

A head weighs the keys by their L1 distance from the query, clipped at k = 6: half of the heads of Horn et al. (2021), 4
of 32 channels, read 32 × 32 pixels and a CLS token. "unfold" copies out the square of (2k − 1)² values around each
pixel, as the paper's formula does; "literal" has one number per pair; "fast" is the library's. The part "heads" starts
from queries, position vectors and values, and makes the random features; the part "sums" starts from the kernel values.
The results of the forms are compared first. The exponent, of one image at a time, is the slope of a straight line
through the logarithms.
"""

import measuring
import system_memory
import torch

from translution_lib.functional.feature_states import positive_kernel
from translution_lib.functional.linear_attention import denominators
from translution_lib.functional.random_features import draw_features
from translution_lib.functional.window_sum import window_sum, window_sum_definition, window_sum_unfold

FORMS = {"fast": window_sum, "unfold": window_sum_unfold, "literal": window_sum_definition}
SIZES = {"batch": 8, "heads": 4, "head_dim": 32, "clip": 6, "features": 110}
GRIDS, GRID = (16, 32, 64, 128), 32
QUICK_SIZES, QUICK_GRIDS = {"batch": 2, "heads": 2, "head_dim": 4, "clip": 3, "features": 5}, (4, 6, 8)
FASTER, LEANER, EXPONENT = 5, 10, 1.1
"""What is asked of the fast form: times as fast as the unfold, a share of its memory, growth with the pixels."""


def tasks(args) -> list[dict]:
    size, grids = (QUICK_SIZES, QUICK_GRIDS) if args.quick else (SIZES, GRIDS)
    side = grids[1]
    found = [{"part": part, "form": form, "grid": side} for part in ("heads", "sums") for form in FORMS]
    found += [{"part": "heads", "form": "fast", "grid": grid, "batch": 1} for grid in grids]
    return [{"kind": "window", **size, **task, "tokens": task["grid"] ** 2 + 1} for task in found]


def measure(task: dict) -> dict:
    inputs, run = make(task)
    small_inputs, small = make({**task, "grid": 4})                 # what is loaded once is not counted
    small(*small_inputs)[0].sum().backward()
    torch.manual_seed(2)
    direction = torch.randn(inputs[-1].shape, device=task["device"])
    step = backward_step(inputs, run, direction, task)
    peak = system_memory.peak_bytes(step, task["device"])
    with torch.no_grad():
        output = float((run(*inputs).double() * direction.double()).sum())
    result = {"peak_bytes": peak, "sums": [output, *(float(x.grad.double().square().sum()) for x in inputs)]}
    return {**result, **measuring.best_of(step, task, warm=True)}


def make(task: dict) -> tuple:
    """Return a part's inputs, and the part as a function of them: the output of every token."""
    torch.manual_seed(1)
    h, d, k, grid = (task[key] for key in ("heads", "head_dim", "clip", "grid"))
    q, v = (torch.randn(task["batch"], h, grid**2 + 1, d) for _ in range(2))
    w = 0.5 * torch.randn(k + 1, d)
    omega = draw_features("orthogonal", task["features"], d).float()
    inputs = (0.5 * q, w, v) if task["part"] == "heads" else (kernel_values(0.5 * q, w, omega), v)
    inputs = tuple(x.detach().to(task["device"]).requires_grad_() for x in inputs)
    omega, sums = omega.to(task["device"]), FORMS[task["form"]]

    def run(*given):
        rho = kernel_values(*given[:2], omega) if task["part"] == "heads" else given[0]
        numerator, denominator = sums(rho, given[-1], (grid, grid), cls=True)
        return numerator / denominators(denominator)[..., None]
    return inputs, run


def kernel_values(q: torch.Tensor, w: torch.Tensor, omega: torch.Tensor) -> torch.Tensor:
    """Return ρ_ir = φ(q_i) φ(w_r)ᵀ for the distances 0 … k, and for the zero vector of the pairs with CLS."""
    return positive_kernel(q, torch.cat([w, torch.zeros_like(w[:1])]), omega)


def backward_step(inputs: tuple, run, direction: torch.Tensor, task: dict):
    """Return forward and backward as a function without arguments."""
    def step() -> None:
        for x in inputs:
            x.grad = None
        with measuring.precision(task):
            y = run(*inputs)
        y.float().backward(direction)
    return step


def finish(record: dict) -> None:
    """Print all rows, compare the forms, weigh the fast one against the bars."""
    for row in record["rows"]:
        print(measuring.text(row, "part", "form", "grid", "batch"))
    measured = [row for row in record["rows"] if row["status"] == "measured"]
    side = record["rows"][0]["grid"]
    batch = record["rows"][0]["batch"]
    found = {(row["part"], row["form"]): row for row in measured if (row["grid"], row["batch"]) == (side, batch)}
    for (part, form), row in found.items():
        if form != "fast":
            ours = found[part, "fast"]["sums"]
            row["disagreement"] = measuring.disagreement(row["sums"], ours, "the position heads'")
    record["summary"] = {f"{part}_{form}_over_fast_{what}": row[key] / max(found[part, "fast"][key], 1)
                         if key == "peak_bytes" else row[key] / found[part, "fast"][key]
                         for (part, form), row in found.items() if form != "fast"
                         for what, key in (("time", "seconds"), ("memory", "peak_bytes"))}
    for name, value in record["summary"].items():
        print(f"{name:32s} {value:10.2f}")
    fast = [row for row in measured if row["batch"] == 1]
    record["growth"] = measuring.growth(fast, "tokens")
    print(measuring.growth_line("fast", record["growth"]))
    weigh(record, {name.removeprefix("heads_unfold_over_fast_"): v for name, v in record["summary"].items()})


def weigh(record: dict, ratios: dict) -> None:
    """Print the bars, as far as their rows were measured."""
    if "time" in ratios:
        measuring.bar(record, "time of the unfold over that of the fast form", ratios["time"], "at least", FASTER)
        measuring.bar(record, "memory of the unfold over that of the fast form", ratios["memory"], "at least", LEANER)
    measuring.bar(record, "exponent of the fast form's time", record["growth"]["seconds"], "at most", EXPONENT)


if __name__ == "__main__":
    measuring.main("relative-performer", measuring.parser(__doc__), tasks, measure, finish)

"""The Performer layer beside softmax attention, forward and backward, against the number of tokens.

    python benchmarks/linear_attention.py --write results/benchmarks/linear-attention.json
    python benchmarks/linear_attention.py --causal --write results/benchmarks/linear-attention-causal.json

All layers have 4 heads of 32 channels, as half of the heads of Horn et al. (2021) have, and read one text. "performer"
is the library's default, with d·ln d positive features; "softmax" is self-attention through torch's fused kernel,
"tables" the same with its n × n weights. At the smallest length the Performer also runs as its definition, and the
forms of both are compared first. The exponent is the slope of a straight line through the logarithms.
"""

from contextlib import nullcontext

import measuring
import system_memory
import torch

from translution_lib import Attention, Relations, backend
from translution_lib.functional.attention import masked_softmax
from translution_lib.mixers.performer import Performer

SIZES = {"batch": 1, "dim": 128, "heads": 4}
LENGTHS = (1024, 2048, 4096, 8192, 16384)
QUICK_SIZES, QUICK_LENGTHS = {"batch": 2, "dim": 8, "heads": 2}, (16, 32, 64)
FORMS = ("performer", "softmax", "tables")
EXPONENT = 1.1
"""What the Performer's time may grow by, as a power of the number of tokens."""


def tasks(args) -> list[dict]:
    size, lengths = (QUICK_SIZES, QUICK_LENGTHS) if args.quick else (SIZES, LENGTHS)
    common = {"kind": "length", **size, "causal": args.causal}
    found = [{**common, "form": "performer-definition", "tokens": lengths[0]}]
    found += [{**common, "form": form, "tokens": n} for form in FORMS for n in lengths]
    return [{**task, **needed(task)} for task in found]


def needed(task: dict) -> dict:
    """Return what tables need at their peak: six of them, scores, weights and gradients."""
    if task["form"] != "tables":
        return {}
    return {"needs_bytes": 24 * task["batch"] * task["heads"] * task["tokens"] ** 2}


class Tables(Attention):
    """Self-attention whose scores and weights are n × n tables."""

    def fused(self, q, k, v, bias=None, scale=None):
        """Form the scores, their softmax and the weighted sum one after the other."""
        mask = None if self.relations.complete else self.relations.mask_on(q.device)
        return masked_softmax(q @ k.mT / q.shape[-1] ** 0.5, mask) @ v


KINDS = {"performer": Performer, "performer-definition": Performer, "softmax": Attention, "tables": Tables}


def measure(task: dict) -> dict:
    layer = make(task)
    x = torch.randn(task["batch"], task["tokens"], task["dim"], device=task["device"], requires_grad=True)
    direction = torch.randn(x.shape, device=x.device)
    with backend("definition") if task["form"] == "performer-definition" else nullcontext():
        make({**task, "tokens": 8})(x[:, :8]).sum().backward()      # what is loaded once is not counted
        step = measuring.layer_step(layer, x, direction, task)
        peak = system_memory.peak_bytes(step, task["device"])
        return {"peak_bytes": peak, "sums": measuring.sums(layer, x, direction),
                **measuring.best_of(step, task, warm=True)}


def make(task: dict) -> torch.nn.Module:
    """Return a form's layer; its weights and features are the same for all forms of a kind."""
    torch.manual_seed(0)
    layer = KINDS[task["form"]](line(task["tokens"], task["causal"]), task["dim"], task["heads"]).to(task["device"])
    torch.manual_seed(1)
    return layer


def line(n: int, causal: bool) -> Relations:
    """Return one relation for all pairs, a byte for each; what layers ask of it is answered before a measurement."""
    index = torch.zeros(n, n, dtype=torch.int8)
    if causal:
        index.masked_fill_(torch.ones(n, n, dtype=torch.bool).triu_(1), -1)
    relations = Relations(index, 1, ("all",), None, False, causal)
    assert relations.complete is not causal and relations.all_past is causal
    return relations


def finish(record: dict) -> None:
    """Print all rows, compare the forms, fit the growth."""
    for row in record["rows"]:
        print(measuring.text(row, "form", "tokens"))
    found = {(row["form"], row["tokens"]): row for row in record["rows"] if row["status"] == "measured"}
    first = record["rows"][0]["tokens"]
    for form, other in (("performer", "performer-definition"), ("softmax", "tables")):
        row = found[other, first]
        row["disagreement"] = measuring.disagreement(row["sums"], found[form, first]["sums"], f"the {form} layer's")
    record["growth"] = {form: measuring.growth([row for (name, _), row in found.items() if name == form], "tokens")
                        for form in FORMS}
    for form, fit in record["growth"].items():
        print(measuring.growth_line(form, fit))
    last = max(n for form, n in found if form == "softmax")
    ratio = found["softmax", last]["seconds"] / found["performer", last]["seconds"]
    print(f"at {last} tokens softmax attention takes {ratio:.1f} times as long as the Performer")
    measuring.bar(record, "exponent of the Performer's time", record["growth"]["performer"]["seconds"], "at most",
                  EXPONENT)


def options():
    p = measuring.parser(__doc__)
    p.add_argument("--causal", action="store_true", help="a token reads itself and those before it")
    return p


if __name__ == "__main__":
    measuring.main("linear-attention", options(), tasks, measure, finish)

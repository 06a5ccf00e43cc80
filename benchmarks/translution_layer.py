"""One Translution layer, forward and backward: the grouped form, the literal gather, self-attention, the bare products.

    python benchmarks/translution_layer.py --preset vit-a12 --write results/benchmarks/layer-vit-a12.json
    python benchmarks/translution_layer.py --grid 4 --batch 2         # any other size
    python benchmarks/translution_layer.py --preset vit-a12 --authors PATH

``--authors`` times the authors' own layer beside the others; PATH is a copy of their repository, or the file
``translution.py`` of its vision package. All forms start from the same numbers, and their results are compared.
The form "grouped" is torch's on a processor, which computes projected pairs again in backward; "kept" keeps them.
"compiled" and "compiled_kept" are the same two in C, for a processor and float32; they need a C compiler.
On a card, "grouped" is what the library chooses there, and its row says how; "loop", "padded", "grouped_mm" (bfloat16
alone) and "triton" are forms that it chooses from, one by one, each as far as it can serve the layer.
The C library hands large freed blocks back to the system, and a step then asks for new pages of memory, 4 KiB each;
``--huge-pages`` measures what is left of a difference where they are large. The bars are those of the default.
The rate counts what the mathematics needs: nine products for each pair and sample, three forward and six backward, of
2·C·C′ operations each. Its yardstick is ``torch.mm`` and ``torch.bmm`` at the same shapes: as many rows as a relation
has pairs on average, times the batch, and one more time relation by relation with the operator's own numbers of rows.
"""

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import measuring
import system_memory
import torch

from translution_lib import Attention, Translution, backend, cost, offsets
from translution_lib.backends import choice

PRESETS = {
    "vit-a12": {"grid": 7, "batch": 8, "dim": 192, "heads": 3},
    "vit-a56": {"grid": 4, "batch": 16, "dim": 192, "heads": 3},
    "vit-a12-batch64": {"grid": 7, "batch": 64, "dim": 192, "heads": 3},
    "one-head-65": {"grid": 8, "batch": 128, "dim": 64, "heads": 1},
    "vit-a16": {"grid": 14, "batch": 8, "dim": 192, "heads": 3},
}
QUICK = {"grid": 2, "batch": 2, "dim": 8, "heads": 2}
BARS = {
    "vit-a12": [("literal_over_{}_time", "at least", 100), ("literal_over_{}_memory", "at least", 100)],
    "vit-a56": [("literal_over_{}_time", "at least", 80)],
    "vit-a12-batch64": [("{}_share_of_mm", "at least", 0.8)],
    "one-head-65": [("{}_share_of_mm", "at least", 0.7)],
    "vit-a16": [("{}_peak_bytes", "at most", 1e9)],
}
"""What the form that serves a layer best should reach; each is held against it."""
FORMS = {
    "grouped": None,
    "kept": {"name": "torch", "keep": True},
    "compiled": {"name": "c"},
    "compiled_kept": {"name": "c", "keep": True},
    "loop": {"name": "torch"},
    "padded": {"name": "padded"},
    "grouped_mm": {"name": "grouped_mm"},
    "triton": {"name": "triton"},
}
"""The forms of the grouped product, and the backend of each; None is what a benchmark runs unasked."""
ON_CARDS = ("grouped", "loop", "padded", "grouped_mm", "triton")
PRODUCTS = 9
"""Products of a pair's row with a matrix: q, k and v forward, and for each the gradients of its row and matrix."""


def sizes(args) -> dict:
    """Return the sizes that the options name: a preset's, unless an option says otherwise."""
    base = QUICK if args.quick else PRESETS[args.preset]
    return {k: base[k] if getattr(args, k) is None else getattr(args, k) for k in base}


def tasks(args) -> list[dict]:
    size = sizes(args)
    made = cost.layer.named("translution", offsets((size["grid"],) * 2, cls=True), size["dim"], size["heads"])
    gather = int(1.4 * made.saved_bytes(size["batch"], form="gather"))  # one gradient of the three copies comes on top
    serving = forms_of(args.device, args.dtype)
    found = [{"form": "literal", "needs_bytes": gather}, *({"form": form} for form in serving),
             {"form": "self-attention"}, {"form": "products"}]
    if args.authors:
        found.append({"form": "authors", "needs_bytes": gather, "authors": str(args.authors.resolve())})
    return [{"kind": "layer", **size, **task} for task in found]


def forms_of(device: str, dtype: str) -> list[str]:
    """Return the forms that serve a device and type."""
    if device != "cpu":
        return [form for form in ON_CARDS if dtype == "bfloat16" or form != "grouped_mm"]
    return [form for form in FORMS if form not in ON_CARDS[1:]
            and (dtype == "float32" or not form.startswith("compiled"))]


def measure(task: dict) -> dict:
    if task["form"] == "products":
        return products(task)
    layer, x, reference = make(task)
    layer.to(task["device"])
    x = x.to(task["device"]).requires_grad_()
    direction = torch.randn(x.shape, device=x.device)
    how = {**FORMS, "literal": {"name": "definition"}}.get(task["form"])
    with backend(**how) if how else nullcontext():
        measuring.load_libraries(task)
        step = measuring.layer_step(layer, x, direction, task)
        if task["device"] != "cpu":
            step()                                              # what chooses and tunes is no part of a step
        peak = system_memory.peak_bytes(step, task["device"])
        result = {"peak_bytes": peak, "sums": measuring.sums(layer, x, direction)}
        times = {**measuring.best_of(step, task), "new_pages": system_memory.new_pages(step)}
        if task["form"] == "grouped" and task["device"] != "cpu":
            result["choice"] = choice.report()
        return {**result, **times, "output": compared(layer, x, reference)}


def make(task: dict) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor | None]:
    """Return a form's layer, its input, and for the authors' layer the output that the library gives."""
    relations = offsets((task["grid"],) * 2, cls=True)
    kind = Attention if task["form"] == "self-attention" else Translution
    torch.manual_seed(0)
    layer = kind(relations, task["dim"], task["heads"])
    torch.manual_seed(1)
    x = torch.randn(task["batch"], relations.n, task["dim"])
    return authors_layer(layer, x, task) if task["form"] == "authors" else (layer, x, None)


def compared(layer: torch.nn.Module, x: torch.Tensor, reference: torch.Tensor | None) -> float | None:
    """Return the largest difference between a layer's output and a reference, relative to the largest entry."""
    if reference is None:
        return None
    with torch.no_grad():
        return float((layer(x).cpu() - reference).abs().max() / reference.abs().max())


def authors_layer(layer: Translution, x: torch.Tensor, task: dict) -> tuple:
    """Return the authors' layer with the library's numbers in it; it normalises its input itself."""
    module = load(Path(task["authors"]))
    theirs = module.QKVTranslution((task["grid"],) * 2, task["dim"], task["heads"], task["dim"] // task["heads"])
    first = [layer.relations.pairs_of(r) for r in range(layer.relations.count)]
    mirror = torch.stack([layer.relations.index[j[0], i[0]] for i, j in first])
    with torch.no_grad():
        theirs.to_q.unique_params[mirror] = layer.query             # their query reads the offset the other way round
        theirs.to_k.unique_params.copy_(layer.key)
        theirs.to_v.unique_params.copy_(layer.value)
        if isinstance(theirs.to_out, torch.nn.Identity):
            layer.output = torch.nn.Identity()
        else:
            theirs.to_out[0].load_state_dict(layer.output.state_dict())
        return theirs, x, layer(torch.nn.functional.layer_norm(x, (task["dim"],)))


def load(path: Path) -> ModuleType:
    """Import the authors' file by its path."""
    places = [path, path / "translution.py", path / "models" / "translution.py",
              path / "ViT" / "models" / "translution.py"]
    file = next((p for p in places if p.is_file()), None)
    if file is None:
        raise SystemExit(f"authors: {path.name!r} holds no ViT/models/translution.py")
    spec = importlib.util.spec_from_file_location("authors_translution", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def products(task: dict) -> dict:
    """Return the rates of the bare products, in 10⁹ operations per second, one way each."""
    relations = offsets((task["grid"],) * 2, cls=True)
    rows = (relations.sizes * task["batch"]).tolist()
    mean, c = round(sum(rows) / len(rows)), task["dim"]
    return {"rows": mean, "mm": one_shape(1, mean, c, task), "bmm": one_shape(2, mean, c, task),
            "mm_each_relation": each_relation(rows, c, task)}


def one_shape(batch: int, m: int, c: int, task: dict) -> dict:
    """Return the rates of X W, Y Wᵀ and Xᵀ Y at one shape, and of the three together."""
    lead = (batch,) if batch > 1 else ()
    x, y, w, dw = (measuring.random(*lead, *s, task=task) for s in ((m, c), (m, c), (c, c), (c, c)))
    multiply, flops = (torch.bmm if lead else torch.mm), 2 * batch * m * c * c
    steps = {"forward": lambda: multiply(x, w, out=y), "rows": lambda: multiply(x, w.mT, out=y),
             "matrix": lambda: multiply(x.mT, y, out=dw)}
    return together({name: measuring.rate(flops, step, task) for name, step in steps.items()})


def each_relation(rows: list[int], c: int, task: dict) -> dict:
    """Return the rates when every relation has its own matrix and number of rows, as in the operator."""
    x, y = (measuring.random(max(rows), c, task=task) for _ in range(2))
    w, dw = (measuring.random(len(rows), c, c, task=task) for _ in range(2))
    cut = [(x[:m], y[:m], w[r], dw[r]) for r, m in enumerate(rows)]
    steps = {"forward": lambda: [torch.mm(a, m, out=b) for a, b, m, _ in cut],
             "rows": lambda: [torch.mm(a, m.mT, out=b) for a, b, m, _ in cut],
             "matrix": lambda: [torch.mm(a.mT, b, out=d) for a, b, _, d in cut]}
    return together({name: measuring.rate(2 * sum(rows) * c * c, step, task) for name, step in steps.items()})


def together(rates: dict) -> dict:
    """Add the rate of all three ways one after the other, the mean that counts their times."""
    return {**rates, "together": len(rates) / sum(1 / r for r in rates.values())}


def finish(record: dict) -> None:
    """Compare the forms; refuse the record if they disagree."""
    found = {row["form"]: row for row in record["rows"] if row["status"] == "measured"}
    for row in record["rows"]:
        print(f"{row['form']}: rows {row['rows']}" if row["form"] in found and "rows" in row
              else measuring.text(row, "form"))
    if "grouped" not in found:
        return
    check(found)
    record["summary"] = summary(found)
    for name, value in record["summary"].items():
        print(f"{name:40s} {value:14.3f}")
    for what, relation, bound in bars(**record["parameters"]):
        if what in record["summary"]:
            measuring.bar(record, what, record["summary"][what], relation, bound)


def bars(preset: str, quick: bool, device: str, dtype: str, **options) -> list[tuple[str, str, float]]:
    """Return what is asked of a preset in each of its forms; nothing where an option changes its size."""
    if quick or any(options[k] is not None for k in QUICK):
        return []
    return [(what.format(form), *rest) for what, *rest in BARS[preset] for form in forms_of(device, dtype)]


def check(found: dict) -> None:
    """Stop if two forms of the same layer disagree."""
    for form, other in ((form, found[form]) for form in ("literal", "authors", *list(FORMS)[1:]) if form in found):
        worst = other["output"] if form == "authors" else max(
            abs(a - b) / max(abs(a), 1e-30) for a, b in zip(other["sums"], found["grouped"]["sums"], strict=True))
        if worst > 2e-3:
            raise SystemExit(f"the {form} form and the grouped one disagree by {worst:.1e}: the comparison is void")
        other["disagreement"] = worst


def summary(found: dict) -> dict:
    """Return the numbers that chapter 9 reports, as far as their rows were measured."""
    first = found["grouped"]
    flops = PRODUCTS * 2 * (first["grid"] ** 2 + 1) ** 2 * first["batch"] * first["dim"] ** 2
    rates = {f"{kind}_gflops": found["products"][kind]["together"]
             for kind in ("mm", "bmm", "mm_each_relation") if "products" in found}
    result = dict(rates)
    for form in (form for form in FORMS if form in found):
        result[f"{form}_gflops"] = flops / found[form]["seconds"] / 1e9
        result[f"{form}_peak_bytes"] = found[form]["peak_bytes"]
        for other in (other for other in ("literal", "authors") if other in found):
            result[f"{other}_over_{form}_time"] = found[other]["seconds"] / found[form]["seconds"]
            result[f"{other}_over_{form}_memory"] = found[other]["peak_bytes"] / max(found[form]["peak_bytes"], 1)
        if "self-attention" in found:
            result[f"{form}_over_attention_time"] = found[form]["seconds"] / found["self-attention"]["seconds"]
        for kind, rate in rates.items():
            result[f"{form}_share_of_{kind.removesuffix('_gflops')}"] = result[f"{form}_gflops"] / rate
    return result


def options():
    p = measuring.parser(__doc__)
    p.add_argument("--preset", choices=PRESETS, default="vit-a12")
    for name in ("grid", "batch", "dim", "heads"):
        p.add_argument(f"--{name}", type=int, help="instead of the preset's")
    p.add_argument("--authors", type=Path, help="a copy of the authors' repository, timed side by side")
    return p


if __name__ == "__main__":
    measuring.main("translution-layer", options(), tasks, measure, finish)

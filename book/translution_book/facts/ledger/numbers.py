"""A row for every printed number: recounted where a formula gives it, compared with runs where it was measured."""

import re

import torch
from translution_runs.baselines import Baseline
from translution_runs.data.imagenet import COUNTS
from translution_runs.printed import Cell, cells

from translution_book.facts.errata import ERRATA
from translution_book.facts.ledger.row import KINDS, Row, Ruling
from translution_book.facts.ledger.rules import rounds_to
from translution_book.facts.ledger.runs import Runs
from translution_book.facts.recount import config_of, future_offsets, recount
from translution_lib import cost
from translution_lib.models import GPTConfig, ViTConfig

PRINTED_PAPERS = ("translution", "performers", "riemannformer")
PERFORMERS = {
    "Performer, no position": "performer", "Performer, absolute": "performer",
    "Performer, strategy 1": "performer-s1", "Performer, strategy 2": "performer-s2",
}
"""Mixer whose parameters a row of Horn et al. (2021) counts; its absolute positions are sinusoids and have none."""
IMAGENET = 3
"""The table of the Translution paper whose rows are trained on ImageNet."""
CONVOLUTIONAL = {"AlexNet": "alexnet", "VGG-16": "vgg-16", "ResNet-18": "resnet-18"}
"""Name of the network that a row of Horn et al. (2021) counts."""
UNSTATED = {"Linformer", "Routing Transformer"}
"""Rows of Horn et al. (2021) whose sizes no text states: their parameters cannot be recounted."""
CHAPTERS = {("translution", "parameters"): "What it costs", ("translution", "flops"): "What it costs",
            ("translution", "memory"): "Making it fit", ("translution", "perplexity"): "Language models",
            ("performers", "accuracy"): "Performers under shifts",
            ("performers", "parameters"): "Performers under shifts",
            ("riemannformer", "accuracy"): "RiemannFormer on CIFAR"}
LABELS = {"parameters": ("eq-cost-model",), "flops": ("eq-cost-printed",), "memory": ("eq-cost-gather",)}


def number_rows(runs: Runs) -> list[Row]:
    """Return a row for each cell of the tables, in their order."""
    return [number_row(cell, runs) for paper in PRINTED_PAPERS for cell in cells(paper)]


def number_row(cell: Cell, runs: Runs) -> Row:
    """Return the row of one cell."""
    kind, ruling = kind_of(cell), rule(cell, runs)
    wrong = kind in ("parameters", "flops") and ruling.status == "contradicted"
    labels = LABELS.get(kind, ()) if cell.paper == "translution" else ()
    return Row(name(cell), cell.paper, f"Table {cell.table}", sentence(cell), kind, ruling,
               (*labels, "erratum-18") if wrong else labels, CHAPTERS.get((cell.paper, kind), ""), note(cell, ruling))


def rule(cell: Cell, runs: Runs) -> Ruling:
    """Decide about one cell."""
    if cell.metric == "status":
        return Ruling("cannot be run here", "a report on the authors' program", _memory(cell))
    if cell.metric == "parameters" and cell.method in UNSTATED:
        return Ruling("cannot be run here", "nothing to count", "The paper does not state the sizes of this network")
    if cell.metric in ("parameters", "flops"):
        return _recounted(cell)
    return runs.repeated(cell, as_printed(cell))


def _recounted(cell: Cell) -> Ruling:
    if cell.paper == "performers":
        value, by = counted(cell.method)
        agrees = rounds_to(value / 10 ** 6, cell.printed)
        return Ruling("recomputed" if agrees else "contradicted", by, f"{value:,}")
    found = recount(cell)
    remark = "" if found.erratum is None else f"; {found.erratum.remark}"
    return Ruling("recomputed" if found.agrees else "contradicted", "facts.recount",
                  f"{found.value:,}{remark}")


def counted(method: str) -> tuple[int, str]:
    """Parameters of a row of Horn et al. (2021), by formula or counted in the network, for colour pictures of 32²."""
    if method not in CONVOLUTIONAL:
        return cost.parameters(performer(method)), "cost.parameters"
    with torch.device("meta"):
        network = Baseline(CONVOLUTIONAL[method], 32, 3, 10)
    return sum(parameter.numel() for parameter in network.parameters()), "counted in the network"


def performer(method: str) -> ViTConfig:
    """The network of Horn et al.'s appendix A.2: depth 6, 256 channels, 8 heads, one token a pixel of 32 × 32."""
    mixer = PERFORMERS[method]
    options = {"performer-s1": {"length_scales": 4}, "performer-s2": {"clip": 6}}.get(mixer, {})
    return ViTConfig(32, 1, 1, 10, dim=256, depth=6, heads=8, ff=1024, mixer=(mixer,) * 6, options=options)


def _memory(cell: Cell) -> str:
    config = config_of(cell)
    gathered = cost.saved_bytes(config, form="gather") / 1e9
    return f"A matrix for every pair of one sample would keep {gathered:,.0f} GB, the library's form {_kept(config)}"


def _kept(config: ViTConfig | GPTConfig) -> str:
    kept = cost.saved_bytes(config, form="fast")
    return f"{kept / 1e9:,.1f} GB" if kept > 1e8 else f"{kept / 1e6:,.0f} MB"


def note(cell: Cell, ruling: Ruling) -> str:
    """What has to be known beside a number: true operations, and what was chosen so that a count comes out."""
    if cell.metric == "flops":
        return _true_operations(config_of(cell))
    if cell.metric == "parameters" and cell.method == "AlexNet":
        return "The paper does not describe the network; this one was chosen to fit the number (erratum 90)"
    if cell.metric == "parameters" and cell.paper == "translution":
        used = (recount(cell).value - future_offsets(cell)) / 1e6
        if future_offsets(cell) and not rounds_to(used, cell.printed):  # a few scalars change no digit
            return ("With an absolute embedding and 2N − 1 offsets, the reading that gives the number (erratum 20); "
                    f"the causal network has {used:.1f} M")
    if ruling.status != "not yet run" or cell.paper != "translution" or cell.table == 4:
        return ""
    return takes(cell) if cell.table == IMAGENET else cell.note


def _true_operations(model: ViTConfig | GPTConfig) -> str:
    true = cost.macs_true(model)
    if true == cost.macs_as_printed(model):
        return ""
    return f"By the rule that gives the paper's numbers (fvcore's); the true count is {true / 1e6:,.0f} M"


def takes(cell: Cell) -> str:
    """What a row of Table 3 takes: operations of an epoch (eq-cluster-hours) and memory of a step of 256 pictures."""
    model = config_of(cell)
    operations = 6 * cost.macs_products(model) * COUNTS["train"]
    needed = cost.memory(model, 256, autocast="bfloat16", foreach=False).on_card / 1e9
    return f"Grid table-3: {operations / 1e15:,.1f} · 10¹⁵ operations an epoch, {needed:.0f} GB for a step of 256"


def kind_of(cell: Cell) -> str:
    """Return the kind of the claim that a cell makes."""
    if cell.metric == "status":
        return "memory"
    return cell.metric if cell.metric in KINDS else "accuracy"


def as_printed(cell: Cell) -> str:
    """Return the digits as the paper prints them: two decimals for measured numbers, except in Horn et al. (2021)."""
    measured = kind_of(cell) in ("accuracy", "perplexity") and cell.paper != "performers"
    return f"{cell.value:.2f}" if measured else cell.printed


def sentence(cell: Cell) -> str:
    """Return a cell as a sentence."""
    who = ", ".join(part for part in (cell.subject, cell.method, cell.variant) if part)
    if cell.metric == "status":
        return f"{who}: out of memory"
    what = {"flops": "FLOPs", "top1": "top-1", "top5": "top-5"}.get(cell.metric, cell.metric)
    what = what.replace("top1", "top-1").replace("->", " → ")
    return f"{who}: {what} {_with_unit(cell)}"


def _with_unit(cell: Cell) -> str:
    """A number as its table prints it; operations from a thousand million on stand there in G."""
    if cell.unit == "M" and cell.metric == "flops" and cell.value >= 1000:
        return f"{cell.value / 1000:.3f} G"
    wrong = ERRATA.get(cell.key) if cell.paper == "translution" else None
    if wrong is not None and wrong.kind == "unit":
        return f"{cell.printed} G"
    return f"{as_printed(cell)} {cell.unit}".strip()


def name(cell: Cell) -> str:
    """Return the id of a cell's row."""
    parts = "-".join(part for part in (cell.subject, cell.method, cell.variant, cell.metric) if part)
    words = re.findall(r"[a-z0-9]+", parts.replace("->", "-to-").lower())
    return "-".join([cell.paper, "table", str(cell.table), *words])


__all__ = ["PRINTED_PAPERS", "as_printed", "name", "number_row", "number_rows", "rule", "sentence"]

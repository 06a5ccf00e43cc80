"""What the command prints: tables in plain text, plans, states, and all about one record."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from translution_runs.grids.plan import Prediction, remaining
from translution_runs.grids.status import Status, counts
from translution_runs.kinds import kind_named
from translution_runs.records import Record
from translution_runs.tables import Table

UNKNOWN = "unknown"
PLAN_NOTE = """\
Time of training and testing alone, one run after the other. Memory at the peak of a training step: on a GPU with what
the card needs besides, on a CPU without Python and its libraries, some 600 MiB."""


def text(table: Table) -> str:
    """A table in columns of plain text, then its caption and where its numbers are from."""
    origin = [f"  {line}" for line in table.provenance]
    return "\n".join([columns([table.header, *table.rows]), "", table.caption, *origin])


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Lines of words in columns as wide as their widest word; the first line is a heading."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    rows = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([rows[0], "  ".join("-" * width for width in widths).rstrip(), *rows[1:]])


def states(found: Sequence[Status]) -> str:
    """A line for every run, then how many are in each state."""
    lines = [("run", "state", ""), *((one.config.name, one.state, one.detail) for one in found)]
    return f"{columns(lines)}\n\n{tally(found)}"


def tally(found: Iterable[Status]) -> str:
    """How many runs are in each state."""
    return ", ".join(f"{count} {state}" for state, count in counts(found).items()) or "no runs"


def plan(predictions: Sequence[Prediction]) -> str:
    """A line for every run with its predicted time and memory, then the time of those that are not done."""
    lines = [("run", "state", "time", "taken from", "memory"), *map(planned, predictions)]
    seconds, unknown = remaining(predictions)
    more = f", and {unknown} whose time is unknown" if unknown else ""
    return f"{columns(lines)}\n\nleft to do: {duration(seconds)}{more}\n{PLAN_NOTE}"


def planned(one: Prediction) -> tuple[str, ...]:
    """The line of one run."""
    cuda = one.status.config.device != "cpu"
    memory = one.memory.on_card if cuda else one.memory.total
    time = UNKNOWN if one.seconds is None else duration(one.seconds)
    return (one.status.config.name, one.status.state, time, one.source, size(memory))


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def size(count: int) -> str:
    """Bytes in MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def record(found: Record) -> str:
    """Everything that a record says, in sections."""
    curve = [("epoch", "rate", "loss", "accuracy, %", "seconds"), *(
        (str(e.number), f"{e.learning_rate:.3g}", f"{e.loss:.4f}", f"{100 * e.accuracy:.2f}", f"{e.seconds:.1f}")
        for e in found.curve)]
    unit = kind_named(found.experiment).unit
    data = {f"{split}, {name}": f"{part.samples:,} {unit} of {part.name}, sha256 {digest}"
            for split, part in found.data.items() for name, digest in part.sha256.items()}
    parts = {"parameters": pairs(found.parameters), "model": pairs(found.model),
             "cost": pairs({name: f"{value:,}" for name, value in found.cost.items()}), "test": tested(found),
             "training": columns(curve), "sample": found.sample, "data": pairs(data),
             "provenance": pairs(origin(found))}
    shown = (f"{name}\n{body}" for name, body in parts.items() if body or name != "sample")
    return "\n\n".join([f"{found.name} ({found.experiment})", *shown])


def outcome(found: Record) -> str:
    """One line: what came out of a run."""
    right = [f"{name} {100 * one.accuracy:.2f} %" for name, one in found.evaluations.items()]
    read = [f"{name} perplexity {one.perplexity:.2f}" for name, one in found.texts.items()]
    return ", ".join([*right, *read, *(f"{name} cannot" for name in found.cannot)])


def tested(found: Record) -> str:
    """A line for each placement of the images, or for each length of the windows of text."""
    if found.evaluations:
        heading = ("placement", "right", "of", "accuracy, %", "interval, %", "loss")
        return columns([heading, *map(evaluation, found.evaluations.items())])
    texts = ("length", "tokens", "perplexity", "interval", "nats", "error", "bits/character", "beyond")
    return columns([texts, *map(text_evaluation, found.texts.items()),
                    *((name, "", "cannot", "", "", "", "", why) for name, why in found.cannot.items())])


def text_evaluation(found: tuple[str, Any]) -> tuple[str, ...]:
    """The line of one length."""
    name, one = found
    low, high = one.interval
    return (f"{name} ({one.length})", f"{one.tokens:,}", f"{one.perplexity:.3f}",
            f"{low:.3f} to {high:.3f} ({100 * one.confidence:.0f} %)", f"{one.loss:.4f}", f"{one.error:.4f}",
            f"{one.bits_per_character:.4f}", one.how)


def evaluation(found: tuple[str, Any]) -> tuple[str, ...]:
    """The line of one placement."""
    name, one = found
    low, high = (100 * end for end in one.interval)
    return (name, f"{one.correct:,}", f"{one.n:,}", f"{100 * one.accuracy:.2f}",
            f"{low:.2f} to {high:.2f} ({100 * one.confidence:.0f} %)", f"{one.loss:.4f}")


def origin(found: Record) -> dict[str, Any]:
    """When and on what a run ran, how long, and how often it was resumed."""
    source = found.source or {}
    memory = {name: size(count) for name, count in found.peak_memory.items() if count}
    return {"date": found.date, "commit": source.get("commit", "not known"), "changed since": source.get("dirty", ""),
            "device": found.device, "versions": dict(found.versions), "resumed": found.resumed,
            "seconds": {name: round(value, 1) for name, value in found.seconds.items()}, "peak memory": memory}


def pairs(values: Mapping[str, Any]) -> str:
    """Names and values, one pair a line; a dictionary within is written on one line."""
    width = max(map(len, values), default=0)
    return "\n".join(f"  {name.ljust(width)}  {plain(value)}".rstrip() for name, value in values.items())


def plain(value: Any) -> str:
    """A value without Python's brackets."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else str(value)


def brought(found: Any) -> str:
    """What a session's folder has brought, grid by grid."""
    parts = [f"{len(records)} of {grid}" for (_, grid), records in found.records.items()]
    failed = [one["what"] for one in found.session.get("failed", [])]
    return "\n".join([f"runs: {', '.join(parts) or 'none'}", f"benchmarks: {', '.join(found.benchmarks) or 'none'}",
                      f"failed there: {', '.join(failed) or 'nothing'}"])

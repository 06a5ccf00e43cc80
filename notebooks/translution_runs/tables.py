"""Tables of results for pages, made of run records, with a line that says where each number is from.

Chapter "Static and dynamic MNIST".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from translution_runs.records import Record
from translution_runs.verdicts import HEADINGS, Verdict

Column = Callable[[Record], str]


def percent(placement: str) -> Column:
    """A column with the accuracy in one test placement in per cent, and its interval."""

    def column(record: Record) -> str:
        found = record.evaluations[placement]
        low, high = found.interval
        return f"{100 * found.accuracy:.2f} [{100 * low:.2f}, {100 * high:.2f}]"

    return column


def perplexity(length: str) -> Column:
    """A column with the perplexity of the test text in windows of one length, such as "2x", and its interval."""

    def column(record: Record) -> str:
        if length in record.cannot:
            return "cannot"
        found = record.texts[length]
        low, high = found.interval
        return f"{found.perplexity:.3f} [{low:.3f}, {high:.3f}]"

    return column


def parameter(name: str) -> Column:
    """A column with one of the run's parameters."""
    return lambda record: str(record.parameters[name])


def method(record: Record) -> str:
    """The mixer, or the model where it has none."""
    found = record.parameters
    return str(found["mixer"] if found.get("model", "vit") == "vit" else found["model"])


COLUMNS: Mapping[str, Column] = {
    "mixer": method,
    "parameters": lambda record: f"{record.cost['parameters']:,}",
    "trained on": parameter("train_placement"),
    "static, % [95 % interval]": percent("static"),
    "dynamic, % [95 % interval]": percent("dynamic"),
}


@dataclass(frozen=True)
class Table:
    """A table that a notebook shows as HTML, and a Markdown page as Markdown."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    provenance: tuple[str, ...]

    def markdown(self) -> str:
        """A Markdown table, then caption and provenance."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        return "\n".join([*body, "", *filter(None, [self.caption]), *(f"* {line}" for line in self.provenance)])

    def html(self) -> str:
        """An HTML table; the provenance is folded away below it."""
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        head = row("th", self.header, ' scope="col"')
        body = "".join(row("td", cells) for cells in self.rows)
        origin = "".join(f"<li>{escape(line)}</li>" for line in self.provenance)
        return (f'<div class="results"><table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>'
                f"<details><summary>Where these numbers are from</summary><ul>{origin}</ul></details></div>")

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        return self.markdown()

    __repr__ = __str__


def row(tag: str, cells: Sequence[str], attributes: str = "") -> str:
    """One row of an HTML table. A number and its spread stay on one line."""
    whole = (escape(cell).replace(" ± ", "&nbsp;±&nbsp;") for cell in cells)
    return "<tr>" + "".join(f"<{tag}{attributes}>{cell}</{tag}>" for cell in whole) + "</tr>"


def table(records: Sequence[Record], columns: Mapping[str, Column] = COLUMNS, caption: str = "") -> Table:
    """A table with one row for each record and one column for each entry of `columns`.

    Args:
        records: what `read_records` gives, in the order of the rows.
        columns: heading and function of a record; by default mixer, size, and accuracy in both placements.
        caption: of the table.

    Raises:
        ValueError: no records.
    """
    if not records:
        raise ValueError("records: got none, expected at least one")
    rows = tuple(tuple(column(record) for column in columns.values()) for record in records)
    return Table(tuple(columns), rows, caption, tuple(map(provenance, records)))


def provenance(record: Record) -> str:
    """One line: the record, when, which code, which data, on what."""
    source = record.source
    code = f"commit {source['commit'][:10]}" if source else "no commit known"
    code += " with changes" if source and source["dirty"] else ""
    unit = "tokens" if record.texts or record.cannot else "images"
    data = ", ".join(f"{one.samples:,} {split} {unit} of {one.name}" for split, one in record.data.items())
    return (f"{record.name}: {record.date[:10]}, {code}, torch {record.versions['torch']}, {record.device['model']}, "
            f"seed {record.seed}, {data}, {record.seconds['total']:.0f} s")


def verdict_table(found: Mapping[Sequence[str], Verdict], headings: Sequence[str], caption: str = "",
                  origin: Sequence[str] = ("the records of the tables above",)) -> Table:
    """A line for each verdict: the texts of its key, then what was measured, p, how many seeds, and the word.

    Raises:
        ValueError: a key with another number of texts than headings.
    """
    wrong = [key for key in found if len(key) != len(headings)]
    if wrong:
        raise ValueError(f"found: got the key {wrong[0]}, expected a text for each of {', '.join(headings)}")
    rows = tuple((*key, *one.cells) for key, one in found.items())
    return Table((*headings, *HEADINGS), rows, caption, tuple(origin))

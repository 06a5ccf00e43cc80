"""A row of the ledger: one claim of a source, its status, and what decided about it.

Chapter "The ledger".
"""

from dataclasses import dataclass
from typing import NamedTuple

STATUSES = {
    "reproduced": "run here, and the claim holds: an identity on random numbers in double precision, or records of "
                  "networks of the source's own size, trained on as many images",
    "recomputed": "counted here or in the source's own table, and the claim holds; a printed number to its last digit, "
                  "unless the row says otherwise",
    "contradicted": "run, computed or read off the source's own table here, and the claim does not hold",
    "not reproduced": "networks of the source's own size were run, by a recipe that the source does not print in full, "
                      "and another number came out",
    "runs do not decide": "networks of the source's own size were run on as many images, and the rule leaves the claim "
                          "open",
    "small runs agree": "smaller networks were run, or the source's on fewer images, and by the rule the claim holds "
                        "for them",
    "small runs disagree": "smaller networks were run, or the source's on fewer images, and by the rule the claim does "
                           "not hold for them",
    "small runs do not decide": "smaller networks were run, or the source's on fewer images, and the rule leaves the "
                                "claim open",
    "not yet run": "the library can run it, and the records are not there",
    "cannot be run here": "the library has nothing to run: a network that it lacks, a report on a program or a "
                         "machine, a forecast, a sentence or a size that the source leaves undefined",
}
"""Every status and what it means."""

SIDES = {
    "holds": ("reproduced", "recomputed"), "does not hold": ("contradicted",),
    "open": ("not reproduced", "runs do not decide", "small runs agree", "small runs disagree",
             "small runs do not decide", "not yet run", "cannot be run here"),
}
"""The three answers of the chapter "Verdict", and the statuses of each."""

KINDS = {
    "parameters": "a number of parameters",
    "flops": "a number of operations, as the source counts",
    "accuracy": "a measured accuracy",
    "perplexity": "a measured perplexity",
    "memory": "what fits into which memory",
    "cost": "a comparison of costs, or how they grow",
    "count": "a number of matrices, tokens, entries",
    "theorem": "what an operator can do, or has in common with another",
    "formula": "a displayed formula, or a sentence about one",
    "outcome": "what training gives: which method is better, when, and by how much",
    "report": "a sentence on the authors' own runs, program or machine",
}
"""Every kind of claim."""

COMPUTED = frozenset({"parameters", "flops", "memory", "cost", "count"})
"""Kinds that are computed and not run: where they hold they are "recomputed"."""

PAPERS = {
    "translution": "Translution (the paper)", "preprint": "Translution (the preprint)",
    "performers": "Performers with relative positions",
    "riemannformer": "RiemannFormer", "note": "A note on Horn et al. (2021)",
}
"""The five sources."""


class Ruling(NamedTuple):
    """What decided about a claim.

    Attributes:
        status: a key of ``STATUSES``.
        by: what decided, such as "recount" or "check softmax_is_a_box".
        remark: what was found, in words.
        records: names of the run records that were read.
    """

    status: str
    by: str
    remark: str = ""
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One claim.

    Attributes:
        id: its name, which starts with the paper.
        paper: a key of ``PAPERS``.
        place: where it stands: section, table, figure or display.
        claim: what is said, in the book's words.
        kind: a key of ``KINDS``.
        ruling: its status, and what decided.
        labels: theorems, equations and errata of the book that have the argument.
        chapter: title of the chapter about it, or "".
        note: what is true instead, or in addition.
        reading: which of two readings of one sentence this is, or "".
    """

    id: str
    paper: str
    place: str
    claim: str
    kind: str
    ruling: Ruling
    labels: tuple[str, ...] = ()
    chapter: str = ""
    note: str = ""
    reading: str = ""

    def __post_init__(self) -> None:
        """Refuse a row that no filter of the ledger would find."""
        for name, value, known in (("status", self.ruling.status, STATUSES), ("kind", self.kind, KINDS),
                                   ("paper", self.paper, PAPERS)):
            if value not in known:
                raise ValueError(f"claim {self.id!r}: {name} must be one of {', '.join(known)}, got {value!r}")

    @property
    def sentence(self) -> str:
        """The id without its reading: rows of one sentence of a source share it."""
        return self.id.removesuffix(f"-{self.reading}") if self.reading else self.id

    @property
    def status(self) -> str:
        """The status that was ruled."""
        return self.ruling.status

    @property
    def side(self) -> str:
        """A key of ``SIDES``: whether the claim holds, does not hold, or is open."""
        return next(side for side, statuses in SIDES.items() if self.status in statuses)


def holding(kind: str) -> str:
    """Return the status of a claim of this kind that holds."""
    return "recomputed" if kind in COMPUTED else "reproduced"


__all__ = ["COMPUTED", "KINDS", "PAPERS", "SIDES", "STATUSES", "Row", "Ruling", "holding"]

"""The claims file: what the texts of the sources say, in the book's words, and what decides about each sentence.

An entry names its decider and never a status: ``check`` (a function of ``checks``), ``printed`` (a statement about the
source's own table), ``runs`` (differences between results of a grid), the last two also together, ``awaits`` (the runs
that the library can do and no grid asks for), or ``beyond`` (why there is nothing to run here).
"""

from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from translution_book.facts.ledger.checks import CHECKS, looks_for
from translution_book.facts.ledger.printed import STATEMENTS, says
from translution_book.facts.ledger.row import COMPUTED, KINDS, PAPERS, Row, Ruling, holding
from translution_book.facts.ledger.runs import Comparison, Judged, Runs

CLAIMS_FILE = Path(__file__).parents[1] / "claims.yaml"
DECIDERS = ("check", "printed", "runs", "awaits", "beyond")


class Claim(BaseModel):
    """An entry of the file; its fields are those of ``Row``, and its deciders.

    Attributes:
        id: starts with the paper, a key of ``PAPERS``.
        place: in the source.
        claim: in the book's words.
        kind: a key of ``KINDS``.
        labels: of the book.
        chapter: a title of the book.
        note: what is true instead, or in addition.
        reading: which of two readings of one sentence this is; the id ends with it.
        check: name of a check.
        printed: name of a statement about a table.
        runs: differences between results.
        awaits: which runs are missing.
        beyond: why there is nothing to run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
    id: str = Field(pattern=r"^[a-z]+-[a-z0-9-]+$")
    place: str = Field(min_length=1)
    claim: str = Field(min_length=1)
    kind: str
    labels: tuple[str, ...] = ()
    chapter: str = ""
    note: str = ""
    reading: str = ""
    check: str | None = None
    printed: str | None = None
    runs: Comparison | None = None
    awaits: str | None = None
    beyond: str | None = None

    @field_validator("id")
    @classmethod
    def _paper(cls, value: str) -> str:
        return _one_of("paper", value.partition("-")[0], PAPERS) and value

    @field_validator("kind")
    @classmethod
    def _kind(cls, value: str) -> str:
        return _one_of("kind", value, KINDS)

    @field_validator("check")
    @classmethod
    def _check(cls, value: str | None) -> str | None:
        return value and _one_of("check", value, CHECKS)

    @field_validator("printed")
    @classmethod
    def _printed(cls, value: str | None) -> str | None:
        return value and _one_of("printed", value, STATEMENTS)

    @model_validator(mode="after")
    def _decider(self) -> "Claim":
        given = [name for name in DECIDERS if getattr(self, name)]
        if len(given) != 1 and given != ["printed", "runs"]:
            raise ValueError(f"one of {', '.join(DECIDERS)} must decide, or printed with runs, got {given or 'none'}")
        if self.reading and not self.id.endswith(f"-{self.reading}"):
            raise ValueError(f"reading must be the end of the id, got {self.reading!r}")
        return self


def _one_of(what: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")
    return value


def read_claims(path: str | Path = CLAIMS_FILE) -> list[Claim]:
    """Return the entries of a claims file.

    Raises:
        ValueError: not YAML, not a list, an entry of another form, an unknown name, or an id that occurs twice; the
            message says which entry.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name}: not a claims file; it cannot be read as YAML ({error})") from None
    if not (isinstance(content, list) and content):
        raise ValueError(f"{path.name}: not a claims file; expected a list of claims, got {type(content).__name__}")
    found = [_entry(path.name, number, entry) for number, entry in enumerate(content, 1)]
    twice = sorted({claim.id for claim in found if [c.id for c in found].count(claim.id) > 1})
    if twice:
        raise ValueError(f"{path.name}: id must be given once, got {', '.join(twice)} twice")
    return found


def _entry(file: str, number: int, entry: object) -> Claim:
    who = repr(entry["id"]) if isinstance(entry, dict) and "id" in entry else f"number {number}"
    try:
        return Claim.model_validate(entry)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'the entry'}: {e['msg']}" for e in error.errors()]
        raise ValueError("\n".join([f"{file}: claim {who} is refused", *lines])) from None


def claim_rows(claims: Iterable[Claim], runs: Runs) -> list[Row]:
    """Return the rows of all entries; what runs say is corrected for the number of sentences that ask them.

    Raises:
        ValueError: a grid, row or column that does not exist.
    """
    claims = list(claims)
    for claim in claims:
        if claim.runs:
            try:
                runs.check(claim.runs)
            except ValueError as error:
                raise ValueError(f"claim {claim.id!r}: {error}") from None
    judged = runs.judge({claim.id: claim.runs for claim in claims if claim.runs and not denied(claim)})
    return [Row(claim.id, claim.id.partition("-")[0], claim.place, claim.claim, claim.kind,
                rule(claim, judged.get(claim.id)), claim.labels, claim.chapter, claim.note, claim.reading)
            for claim in claims]


def claim_row(claim: Claim, runs: Runs) -> Row:
    """Return the row of an entry on its own."""
    return claim_rows([claim], runs)[0]


def denied(claim: Claim) -> bool:
    """Whether a sentence is denied by the table that it speaks of: no run can mend it."""
    return claim.printed is not None and not STATEMENTS[claim.printed]()


def rule(claim: Claim, judged: Judged | None) -> Ruling:
    """Decide about one entry."""
    if claim.beyond:
        return Ruling("cannot be run here", "nothing to run", claim.beyond)
    if claim.check:
        holds = CHECKS[claim.check]()
        status = holding(claim.kind) if holds else "contradicted"
        return Ruling(status, f"check {claim.check}", f"{holds}: {looks_for(claim.check)}")
    if claim.awaits:
        return Ruling("not yet run", "no grid", claim.awaits)
    if claim.printed and denied(claim):
        return Ruling("contradicted", "its own table", f"False: {says(claim.printed)}")
    if claim.printed and claim.kind in COMPUTED:
        return Ruling(holding(claim.kind), "its own table", f"True: {says(claim.printed)}")
    own = f"Its own table agrees. {says(claim.printed)}" if claim.printed else ""
    if judged is None:
        return Ruling("not yet run", "no runs that decide", own)
    ruling = judged.ruling
    return ruling._replace(remark=" ".join(filter(None, (ruling.remark and f"{ruling.remark}.", own))))


__all__ = ["CLAIMS_FILE", "Claim", "claim_row", "claim_rows", "read_claims", "rule"]

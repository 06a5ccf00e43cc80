"""The ledger: every claim of the five sources as a row, its status decided by code.

``read_ledger`` makes it from the printed tables, the file ``claims.yaml``, the grids and the run records. Nothing in it
is typed as a status: a count is recounted, an identity is run, a sentence about a table is held against the table, and
a measured number or a comparison waits for records. Source: chapter "The ledger".

    from translution_book.facts import ledger

    rows = ledger.read_ledger("results", "notebooks/grids")
    ledger.tally(rows)["translution"]["contradicted"]
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from translution_book.facts.ledger.claims import CLAIMS_FILE, Claim, claim_rows, read_claims
from translution_book.facts.ledger.numbers import PRINTED_PAPERS, number_rows
from translution_book.facts.ledger.row import KINDS, PAPERS, SIDES, STATUSES, Row, Ruling
from translution_book.facts.ledger.rules import LEAST_SEEDS, LEVEL, compatible, interval, reach, rounds_to
from translution_book.facts.ledger.runs import DECIDING, SMALLER, Comparison, Difference, Judged, Runs


def read_ledger(store: str | Path, grids: str | Path, claims: str | Path = CLAIMS_FILE) -> list[Row]:
    """Return all rows: for each source the sentences of its text, then its printed numbers, table by table.

    Args:
        store: folder of the run records, with a folder for each kind of experiment; where nothing was run yet it may
            be missing, its parent may not.
        grids: folder of the grid files.
        claims: the claims file.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a claims file that is refused, or two rows of one name.
    """
    for folder in (Path(store).parent, Path(grids)):
        if not folder.is_dir():
            raise FileNotFoundError(f"{str(folder)!r} is not a folder")
    runs = Runs(Path(grids), Path(store))
    rows = [*claim_rows(read_claims(claims), runs), *number_rows(runs)]
    twice = [name for name, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise ValueError(f"{Path(claims).name}: id must be given once, got {', '.join(twice)} twice")
    return sorted(rows, key=lambda row: row.paper)


def tally(rows: Iterable[Row], by: str = "paper") -> dict[str, dict[str, int]]:
    """Return how many rows have each status, by paper or by kind; every paper and status is there.

    Raises:
        ValueError: a ``by`` other than "paper" and "kind".
    """
    if by not in ("paper", "kind"):
        raise ValueError(f'by must be "paper" or "kind", got {by!r}')
    found = Counter((getattr(row, by), row.status) for row in rows)
    return {name: {status: found[name, status] for status in STATUSES} for name in (PAPERS if by == "paper" else KINDS)}


__all__ = ["CLAIMS_FILE", "DECIDING", "KINDS", "LEAST_SEEDS", "LEVEL", "PAPERS", "PRINTED_PAPERS", "SIDES", "SMALLER",
           "STATUSES", "Claim", "Comparison", "Difference", "Judged", "Row", "Ruling", "Runs", "compatible", "interval",
           "reach", "read_claims", "read_ledger", "rounds_to", "tally"]

"""One test for many records, which names those that are at fault."""

from collections.abc import Callable, Iterable

from translution_runs import Record


def faults(check: Callable[[Record], object], records: Iterable[Record]) -> str:
    """A line for every record that the check does not pass; empty where all do."""
    found = []
    for record in records:
        try:
            check(record)
        except (AssertionError, ValueError) as error:
            found.append(f"{record.name}: {error}")
    return "\n".join(found)

"""Named checks of claims that need no training: identities on random numbers in double precision, and counts."""

from translution_book.facts.ledger.checks import counts, geometry, operators, performers  # noqa: F401  (they register)
from translution_book.facts.ledger.checks.registry import CHECKS, looks_for

__all__ = ["CHECKS", "looks_for"]

"""Scales of an axis at round numbers: its ends, its ticks, and a cost in few digits."""

from math import ceil, floor, log10

__all__ = ["in_few_digits", "linear", "logarithmic"]


def linear(low: float | int, high: float | int) -> tuple[float, float, float]:
    """Lower end, upper end and step of an axis with three to seven ticks at round numbers."""
    rough = (high - low) / 4 or 0.25 * max(abs(high), 1.0)
    unit = 10.0 ** floor(log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough * (1 - 1e-9))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return first * step, (last if last > first else first + 1) * step, step


def logarithmic(low: float | int, high: float | int) -> list[float]:
    """Round numbers between two ends: the fewest kinds of them that give three ticks, and at most six."""
    found: list[float] = []
    for digits in ((10,), (10, 30), (10, 20, 50), (10, 15, 20, 30, 50, 70), range(10, 100)):
        found = [m * 10.0 ** (k - 1) for k in range(floor(log10(low)), ceil(log10(high)) + 1) for m in digits]
        found = [v for v in found if low <= v <= high]
        if len(found) >= 3:
            break
    return found[:: ceil(len(found) / 6)] if found else [low]


def in_few_digits(value: float | int) -> str:
    """A cost with two or three digits and k, M or G for thousands, millions and thousands of millions."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"

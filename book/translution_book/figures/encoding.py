"""One attention head on a small grid, as numbers that a page can carry.

The general form of a bilinear relative head (chapter "The taxonomy theorem"), δ = p_i − p_j, query minus key::

    a_ij = f_i A_δ f_jᵀ + f_i b_δᵀ + c_δ f_jᵀ + d_δ      α_i = softmax_j a_ij
    v_ij = f_j B_δ + r_δ                                  f'_i = Σ_j α_ij v_ij

An absolute embedding e adds to the tokens first: f_i + e_i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from .plots import _array

__all__ = ["Encoding", "attend", "follow", "moved", "offset_list"]


@dataclass(frozen=True, eq=False)
class Encoding:
    """The matrices of one head, per offset; offsets are numbered as by `translution_lib.offsets(shape)`, m of them.

    Args:
        A: content matrices of the score, (C, C) shared by all offsets, or (m, C, C); the scale 1/√d is in them.
        B: value matrices, (C, E) or (m, C, E); an output projection is in them.
        b: vectors that meet the query, (C,) or (m, C).
        c: vectors that meet the key, (C,) or (m, C).
        d: biases, a number or (m,).
        r: vectors added to the values, (E,) or (m, E).
        absolute: an embedding of every token's place, (n, C).
        window: keys with max|δ| above it are masked.
        cyclic: an offset takes the numbers of its remainder modulo the sides of the grid.
    """

    A: Any
    B: Any
    b: Any = 0.0
    c: Any = 0.0
    d: Any = 0.0
    r: Any = 0.0
    absolute: Any = None
    window: int | None = None
    cyclic: bool = False

    @property
    def channels(self) -> tuple[int, int]:
        """Channels C of a token and E of an output."""
        return _array(self.A).shape[-1], _array(self.B).shape[-1]

    def tables(self, shape: Sequence[int], digits: int = 4) -> dict[str, Any]:
        """The head in homogeneous coordinates [f, 1]: `ids` per offset (−1 is masked), `M` and `N` per id, `e`.

        Numbers are rounded to `digits` decimals, and matrices that several offsets share are stored once.

        Raises:
            ValueError: if an array has neither the shared shape nor one row per offset.
        """
        deltas = offset_list(shape)
        score, value = self._homogeneous(len(deltas))
        flat = np.concatenate([score.reshape(len(deltas), -1), value.reshape(len(deltas), -1)], axis=1)
        if self.cyclic:
            flat = flat[[deltas.index(tuple(x % s for x, s in zip(δ, shape, strict=True))) for δ in deltas]]
        rows, ids = np.unique(np.round(flat, digits) + 0.0, axis=0, return_inverse=True)
        far = [self.window is not None and max(map(abs, δ)) > self.window for δ in deltas]
        c, e = self.channels
        split = (c + 1) ** 2
        return {
            "ids": np.where(far, -1, ids.ravel()),
            "M": rows[:, :split].reshape(-1, c + 1, c + 1),
            "N": rows[:, split:].reshape(-1, c + 1, e),
            "e": None if self.absolute is None else np.round(self._embedding(shape), digits) + 0.0,
        }

    def _homogeneous(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """The score as (m, C+1, C+1) and the value as (m, C+1, E), for tokens with a constant channel."""
        c, e = self.channels
        score, value = np.zeros((m, c + 1, c + 1)), np.zeros((m, c + 1, e))
        score[:, :c, :c], value[:, :c] = self._fit("A", (m, c, c)), self._fit("B", (m, c, e))
        score[:, :c, c], score[:, c, :c] = self._fit("b", (m, c)), self._fit("c", (m, c))
        score[:, c, c], value[:, c] = self._fit("d", (m,)), self._fit("r", (m, e))
        return score, value

    def _fit(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        given = np.asarray(_array(getattr(self, name)), dtype=float)
        if given.ndim and given.shape not in (shape, shape[1:]):
            raise ValueError(f"{name} must have the shape {shape[1:]} or {shape}, got {given.shape}")
        if name in "AB" and not given.ndim:
            raise ValueError(f"{name} must be a matrix, or one per offset, got {given}")
        return np.broadcast_to(given, shape)

    def _embedding(self, shape: Sequence[int]) -> np.ndarray:
        given, expected = np.asarray(_array(self.absolute), dtype=float), (int(np.prod(shape)), self.channels[0])
        if given.shape != expected:
            raise ValueError(f"absolute must have the shape {expected}, got {given.shape}")
        return given


def offset_list(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """The offsets of a grid in row-major order of δ, each axis ascending."""
    return list(product(*(range(1 - size, size) for size in shape)))


def attend(tables: Sequence[dict[str, Any]], x: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Attention (n, n), the mean over heads, and output (n, E), the sum over heads, of tokens x (n, C)."""
    places = np.array(list(np.ndindex(*shape)))
    deltas = places[:, None] - places[None]
    sides = [2 * size - 1 for size in shape]
    number = np.ravel_multi_index(tuple((deltas + np.array(shape) - 1).transpose(2, 0, 1)), sides)
    weights, output = np.zeros((len(x), len(x))), np.zeros((len(x), tables[0]["N"].shape[-1]))
    for head in tables:
        f = np.column_stack([x if head["e"] is None else x + head["e"], np.ones(len(x))])
        ids = head["ids"][number]
        scores = np.einsum("ia,ijab,jb->ij", f, head["M"][ids], f)
        scores = np.where(ids < 0, -np.inf, scores)
        alpha = np.exp(scores - scores.max(axis=1, keepdims=True))
        alpha /= alpha.sum(axis=1, keepdims=True)
        weights += alpha / len(tables)
        output += np.einsum("ij,ja,ijae->ie", alpha, f, head["N"][ids])
    return weights, output


def moved(kinds: np.ndarray, move: Sequence[int]) -> np.ndarray:
    """A picture (H, W) moved by (rows, columns), zero where nothing came from; what leaves the grid is lost."""
    result = np.zeros_like(kinds)
    result[_window(kinds.shape, move)] = kinds[_window(kinds.shape, [-step for step in move])]
    return result


def follow(tables, before: np.ndarray, after: np.ndarray, move: Sequence[int], depth: int) -> dict[str, Any]:
    """Whether the output for the moved picture (H, W, C) is the moved output.

    Returns:
        weights (n, n) of the last layer and output (n, E) of the moved picture; difference (n, E) to the moved output,
        NaN where none came; error, its largest size; word, the verdict.
    """
    shape, results = before.shape[:2], []
    for picture in (before, after):
        x = picture.reshape(-1, picture.shape[-1])
        for _ in range(depth):
            weights, x = attend(tables, x, shape)
        results.append(x.reshape(*shape, -1))
    old, new = results
    difference, here = np.full_like(new, np.nan), _window(shape, move)
    difference[here] = new[here] - old[_window(shape, [-step for step in move])]
    error, flat = float(np.nanmax(np.abs(difference))), (-1, new.shape[-1])
    return {
        "weights": weights,
        "output": new.reshape(flat),
        "difference": difference.reshape(flat),
        "error": error,
        "word": _verdict(error, float(np.abs(new).max()), any(move)),
    }


def _window(shape: Sequence[int], move: Sequence[int]) -> tuple[slice, ...]:
    """The cells where something arrives by the move."""
    return tuple(slice(max(step, 0), size + min(step, 0)) for size, step in zip(shape, move, strict=False))


def _verdict(error: float, high: float, anything: bool) -> str:
    if not anything:
        return "move the object"
    size = "below 0.0001" if error < 5e-5 else f"{error:.4f}"
    return f"{'✓ follows' if error <= 1e-9 * high else '✗ fails'}, largest difference {size}"

"""Damage at random places: bytes flipped, cut, repeated, grown, overwritten; words of a format in a text."""

from hypothesis import strategies as st

PIECE = st.binary(min_size=1, max_size=40)


def flipped(data: bytes, places: list[tuple[int, int]]) -> bytes:
    found = bytearray(data)
    for place, bits in places:
        found[place % len(found)] ^= bits
    return bytes(found)


@st.composite
def damaged(draw, data: bytes) -> bytes:
    """`data` with one to three wounds; it may come out as it was."""
    for _ in range(draw(st.integers(1, 3))):
        data = draw(wounded(data)) if data else data
    return data


@st.composite
def wounded(draw, data: bytes) -> bytes:
    first, last = sorted(draw(st.tuples(st.integers(0, len(data)), st.integers(0, len(data)))))
    match draw(st.sampled_from(["flip", "cut end", "cut out", "repeat", "insert", "append", "overwrite", "zero"])):
        case "flip":
            places = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=4)
            return flipped(data, draw(places))
        case "cut end":
            return data[:first]
        case "cut out":
            return data[:first] + data[last:]
        case "repeat":
            return data[:last] + data[first:]
        case "insert":
            return data[:first] + draw(PIECE) + data[first:]
        case "append":
            return data + draw(PIECE)
        case "overwrite":
            return data[:first] + (piece := draw(PIECE)) + data[first + len(piece):]
        case _:
            return data[:first] + bytes(last - first) + data[last:]


@st.composite
def damaged_text(draw, text: str) -> str:
    """The same for a text, where a word may also be replaced by one that a format gives a meaning to."""
    words = ["null", "[]", "{}", "1e400", "-1", "0", "''", "2026-99-99", "!!python/name:os.system", "&a", "*a", "%",
             ":", "\t", "\n", "\u2028", "é", "true", "0x", "1_0", ".inf", ".nan", "[" * 2000, "9" * 20, "? ", "|"]
    for _ in range(draw(st.integers(1, 3))):
        first, last = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        text = text[:first] + draw(st.sampled_from(words)) + text[last if draw(st.booleans()) else first:]
    return text

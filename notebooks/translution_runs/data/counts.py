"""How many of a data set are wanted."""


def refuse_count(count: int, size: int, what: str) -> None:
    """Raise a ValueError unless so many of a set can be taken, where 0 means all of them.

    Args:
        count: how many are wanted.
        size: how many there are.
        what: the set's number in words, such as "the size of mnist's test split".
    """
    if not 0 <= count <= size:
        raise ValueError(f"count: got {count}, expected 0 (all) to {size}, {what}")

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


def refuse_held_out(last: int, size: int, what: str) -> None:
    """Raise a ValueError unless so many can be taken from the end of a set and some are left.

    Args:
        last: how many are held out.
        size: how many there are.
        what: the set and what it consists of in words, such as "mnist has 60000 images in its train split".
    """
    if not 0 < last < size:
        raise ValueError(f"held_out: got {last}, expected 1 to {size - 1}: {what}")

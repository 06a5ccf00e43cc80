"""How sure the difference of two accuracies is that were measured on the same images."""

from math import sqrt


def disagreement(one: float, other: float) -> tuple[float, float]:
    """The smallest and the largest share of images on which exactly one of two models is right.

    With accuracies p and q it lies from ``|p − q|`` to ``min(p + q, 2 − p − q)``, and both ends are possible.

    Raises:
        ValueError: an accuracy outside [0, 1].

    Label: thm-imagenet-paired.
    """
    if not (0 <= one <= 1 and 0 <= other <= 1):
        raise ValueError(f"one, other: got {one} and {other}, expected accuracies from 0 to 1")
    return abs(one - other), min(one + other, 2 - one - other)


def deviations(one: float, other: float, images: int) -> tuple[float, float]:
    """The smallest and the largest standard error of the difference of two accuracies.

    If m is the share of images on which exactly one is right and d = p − q, the standard error is sqrt((m − d²)/n),
    from which McNemar's test is made. It answers for the choice of the test images, not for that of the training seed.

    Args:
        one: accuracy p, from 0 to 1.
        other: accuracy q on the same images.
        images: their number n.

    Raises:
        ValueError: an accuracy outside [0, 1], or no image.

    Label: thm-imagenet-paired.
    """
    if images < 1:
        raise ValueError(f"images: got {images}, expected at least 1")
    low, high = (sqrt(max(0.0, share - (one - other) ** 2) / images) for share in disagreement(one, other))
    return low, high

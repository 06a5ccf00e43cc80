"""Images for the experiments: embedded digits, MNIST from a local folder, and their placement on a canvas."""

from translution_lib.data.embedded import digits
from translution_lib.data.idx_source import FILES, MNIST, IDXSource, mnist, read_source
from translution_lib.data.image_set import ImageSet
from translution_lib.data.placement import PLACEMENTS, corners, paste, place, places

__all__ = [
    "FILES", "MNIST", "PLACEMENTS", "IDXSource", "ImageSet",
    "corners", "digits", "mnist", "paste", "place", "places", "read_source",
]

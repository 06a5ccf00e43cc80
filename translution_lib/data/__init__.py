"""Data for the experiments: images from a folder or from Hugging Face, checked, and their placement on a canvas."""

from translution_lib.data.embedded import digits
from translution_lib.data.idx_source import FASHION_MNIST, FILES, MNIST, IDXSource, mnist, read_source
from translution_lib.data.image_set import ImageSet
from translution_lib.data.loading import load
from translution_lib.data.placement import PLACEMENTS, corners, paste, place, places
from translution_lib.data.sources import SOURCES, ImageSource

__all__ = [
    "FASHION_MNIST", "FILES", "MNIST", "PLACEMENTS", "SOURCES", "IDXSource", "ImageSet", "ImageSource",
    "corners", "digits", "load", "mnist", "paste", "place", "places", "read_source",
]

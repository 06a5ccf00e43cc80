"""Data for the experiments: images from a folder or from Hugging Face, checked, and their placement on a canvas."""

from translution_runs.data.embedded import digits
from translution_runs.data.idx_source import FASHION_MNIST, FILES, MNIST, IDXSource, mnist, read_source
from translution_runs.data.image_set import ImageSet
from translution_runs.data.loading import load
from translution_runs.data.placement import PLACEMENTS, corners, paste, place, places
from translution_runs.data.sources import SOURCES, ImageSource

__all__ = [
    "FASHION_MNIST", "FILES", "MNIST", "PLACEMENTS", "SOURCES", "IDXSource", "ImageSet", "ImageSource",
    "corners", "digits", "load", "mnist", "paste", "place", "places", "read_source",
]

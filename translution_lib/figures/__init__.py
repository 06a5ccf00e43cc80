"""Figures for the page: drawings that follow the theme, and figures that move with and without a kernel."""

from .interactive import frames
from .linked import linked_maps, pointer_map
from .output import Output, show
from .plots import bars, heatmap, kernel_taps, loglog, relation_table, token_grid
from .relation_map import relation_map
from .style import Palette, palette, use_style

__all__ = [
    "Output",
    "Palette",
    "bars",
    "frames",
    "heatmap",
    "kernel_taps",
    "linked_maps",
    "loglog",
    "palette",
    "pointer_map",
    "relation_map",
    "relation_table",
    "show",
    "token_grid",
    "use_style",
]

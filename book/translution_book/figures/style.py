"""The look of every figure: a small palette, and matplotlib settings for line art that follows the page's theme.

Black is *ink*: whatever is drawn in it becomes ``currentColor`` in the page, so that axes and text follow the light or
dark theme. The six named colours lie between the two backgrounds in luminance (a contrast of about 3 or more with
both) and are told apart by colour-blind readers; line styles and markers repeat the distinction for readers of a grey
print. The colormaps are *ink on nothing*: zero is transparent, whatever the theme.
"""

import math
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Palette", "legible", "palette", "use_style"]

INK = "#000000"
PAPER = "#fefdfe"  # stands for the page's background; svg.py replaces it by the theme's own
FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]  # two families of nearly equal widths: the layout holds everywhere


@dataclass(frozen=True)
class Palette:
    """Six colours, ink and paper, and three ways to colour a matrix."""

    blue: str = "#2b6cb8"
    orange: str = "#d9772b"
    green: str = "#1f8f5f"
    purple: str = "#8e57a8"
    ochre: str = "#a88a1c"
    grey: str = "#808790"
    ink: str = INK
    paper: str = PAPER

    @property
    def cycle(self) -> tuple[str, ...]:
        """The colours of a sequence of lines, in order of use."""
        return (self.blue, self.orange, self.green, self.purple, self.ochre, self.grey)

    def __getitem__(self, i: int) -> str:
        """The i-th colour of the cycle, which repeats."""
        return self.cycle[i % len(self.cycle)]

    @cached_property
    def sequential(self):
        """A colormap from nothing (transparent) to full blue, for values from zero up."""
        from matplotlib.colors import LinearSegmentedColormap, to_rgba

        return LinearSegmentedColormap.from_list("tl-sequential", [to_rgba(self.blue, 0), to_rgba(self.blue, 1)])

    @cached_property
    def diverging(self):
        """A colormap from full orange (negative) over nothing (zero) to full blue (positive)."""
        from matplotlib.colors import LinearSegmentedColormap, to_rgba

        ends = [to_rgba(self.orange, 1), to_rgba(self.orange, 0), to_rgba(self.blue, 0), to_rgba(self.blue, 1)]
        return LinearSegmentedColormap.from_list("tl-diverging", list(zip([0, 0.5, 0.5, 1], ends, strict=True)))

    def categorical(self, count: int) -> list[str]:
        """`count` colours for ids 0 … count−1: the cycle if it suffices, else hues a golden angle apart.

        Lightness alternates between three levels, so that neighbouring ids differ in grey too.
        """
        if count <= 5:
            return list(self.cycle[:count])
        return [_oklch((0.52, 0.74, 0.63)[i % 3], 0.11, 250 + 137.508 * i) for i in range(count)]


def _oklch(lightness: float, chroma: float, hue: float) -> str:
    """An sRGB hex colour from OKLCH coordinates (hue in degrees), clipped into gamut."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(u, 0.0), 1.0))):02x}" for u in linear)


def _gamma(u: float) -> float:
    return 12.92 * u if u <= 0.0031308 else 1.055 * u ** (1 / 2.4) - 0.055


palette = Palette()


def legible(colour: str) -> str:
    """White or near-black: what reads better on an opaque colour."""
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return "#ffffff" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.6 else "#101418"


def use_style() -> None:
    """Set matplotlib's rc parameters for the book's line art; call it once, before drawing.

    Figures are 4.8 × 2.8 inches with 9-point text, which a phone still shows at a legible size. The SVG writer keeps
    text as text (small, searchable, in fonts of known widths) and derives its ids from a fixed salt (stable bytes).
    """
    import matplotlib
    from cycler import cycler

    lines = cycler(color=palette.cycle) + cycler(linestyle=["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))])
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "translution",
            "font.family": FONTS[0],
            "font.size": 9,
            "mathtext.fontset": "dejavusans",
            "axes.titlesize": 9,
            "axes.labelsize": 9,
            "legend.fontsize": 8,
            "xtick.labelsize": 8,
            "ytick.labelsize": 8,
            "figure.figsize": (4.8, 2.8),
            "figure.constrained_layout.use": True,
            "figure.max_open_warning": 0,
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "savefig.transparent": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.8,
            "axes.prop_cycle": lines,
            "lines.linewidth": 1.6,
            "lines.markersize": 4.5,
            "legend.frameon": False,
            "hatch.linewidth": 0.6,
            "image.interpolation": "none",
            "image.cmap": "viridis",
        }
    )

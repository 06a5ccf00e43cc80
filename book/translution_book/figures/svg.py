"""Matplotlib's SVG made fit for a page: small, byte-stable, theme-aware, with ids of its own."""

import hashlib
import io
import re
from dataclasses import dataclass
from html import escape
from xml.etree import ElementTree

from .style import FONTS, INK, PAPER

__all__ = ["Drawing", "drawing", "fingerprint"]

_THEME = {INK: "currentColor", PAPER: "var(--pst-color-background,var(--jp-layout-color0,#fff))"}
_ROOT = f'fill="currentColor" stroke-linejoin="round" font-family="{", ".join(FONTS)}"'
_DROPPED = {"font-family", "stroke-linecap:butt"}


@dataclass(frozen=True)
class Drawing:
    """The inside of an SVG image, in pieces (one element each), and its box: left, top, width, height in points."""

    pieces: tuple[str, ...]
    box: tuple[float, float, float, float]

    def svg(self, uid: str, alt: str, width: float | int | None = None) -> str:
        """The `<svg>` element: `uid` prefixes every id, `width` is the largest width in CSS pixels."""
        widest = width if width is not None else self.box[2] * 96 / 72
        return (
            f'<svg role="img" aria-label="{escape(alt)}" viewBox="{" ".join(map(_number, self.box))}" {_ROOT} '
            f'style="display:block;margin:0 auto;width:100%;max-width:{widest:.0f}px;height:auto">'
            f"{self.inside(uid)}</svg>"
        )

    def inside(self, uid: str) -> str:
        """The markup between the tags of `svg`."""
        return "".join(piece.replace("\0", uid) for piece in self.pieces)


def fingerprint(*parts: str) -> str:
    """A short id that depends on nothing but `parts`."""
    return "tl" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def drawing(fig, box=None) -> Drawing:
    """Render a matplotlib figure; `box` (inches, a `Bbox`) is the part to keep, default: everything drawn."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "translution"}):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        box = "tight" if box is None else box
        fig.savefig(buffer, format="svg", bbox_inches=box, pad_inches=0.02, transparent=True, metadata=metadata)
    root = ElementTree.fromstring(buffer.getvalue())
    used = set(re.findall(r"#([\w.-]+)", " ".join(v for e in root.iter() for v in e.attrib.values())))
    corners = [float(v) for v in root.attrib["viewBox"].split()]
    pieces = [piece for child in root for piece in _pieces(child, used)]
    return Drawing(tuple(pieces), (corners[0], corners[1], corners[2], corners[3]))


def _pieces(element, used: set[str]) -> list[str]:
    """The element as strings; a group without attributes gives its children."""
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style"):
        return []
    mesh = element.get("id", "").startswith("QuadMesh")
    attributes = _attributes(element, used)
    if mesh:
        attributes += _hoist_clip(element) + ' shape-rendering="crispEdges"'
    children = [piece for child in element for piece in _pieces(child, used)]
    if tag in ("g", "defs", "text") and not children and not (element.text or "").strip():
        return []
    if tag == "g" and not attributes:
        return children
    if tag == "path" and _invisible(element, used):
        return []
    text = (element.text or "").strip("\n") if tag in ("text", "tspan") else ""
    inside = (escape(text, quote=False) if text.strip() else "") + "".join(children)
    return [f"<{tag}{attributes}>{inside}</{tag}>" if inside else f"<{tag}{attributes}/>"]


def _hoist_clip(mesh) -> str:
    """Move the clip path that all cells of a mesh name to the mesh itself."""
    clips = {cell.attrib.pop("clip-path", None) for cell in mesh}
    clip = clips.pop() if len(clips) == 1 else None
    return f' clip-path="{clip.replace("#", "#" + chr(0))}"' if clip else ""


def _invisible(path, used: set[str]) -> bool:
    """Whether a path (such as a transparent background) draws nothing."""
    return path.get("style", "").strip("; ") == "fill: none" and path.get("id") not in used


def _attributes(element, used: set[str]) -> str:
    """The attributes as markup: rounded; ids dropped where unused, marked for their prefix elsewhere."""
    kept = []
    for name, value in element.attrib.items():
        name = name.rpartition("}")[2]
        if name == "id":
            if value not in used:
                continue
            value = "\0" + value
        elif name == "style":
            value = _style(value)
        elif name == "d":
            value = _path(value)
        elif name == "href" and value.startswith("data:"):
            value = re.sub(r"\s", "", value)
        elif name in ("x", "y", "width", "height", "transform"):
            value = _round(value, 4 if name == "transform" else 2)
            value = "" if value.startswith("rotate(-0 ") else value
        value = re.sub(r"(^|\()#(?=[A-Za-z])", "\\1#\0", value) if name in ("href", "clip-path", "style") else value
        if value:
            kept.append(f' {name}="{escape(value)}"')
    return "".join(kept)


def _style(value: str) -> str:
    entries = [re.sub(r"\s*:\s*", ":", entry.strip()) for entry in value.split(";") if entry.strip()]
    entries = [e for e in entries if e not in _DROPPED and e.split(":")[0] not in _DROPPED]
    style = _round(";".join(entries), 3)
    for colour, themed in _THEME.items():
        style = style.replace(colour, themed)
    return style


def _path(d: str) -> str:
    """Path data with two decimals and without spare blanks; an axis-parallel rectangle in its short form."""
    d = re.sub(r"\s*([A-Za-z])\s*", r"\1", _round(d, 2)).strip()
    corners = re.fullmatch(r"M(\S+) (\S+)L(\S+) (\S+)L(\S+) (\S+)L(\S+) (\S+?)(?:L(\S+) (\S+?))?z?", d)
    if corners is None:
        return d
    x0, y0, x1, y1, x2, y2, x3, y3, x4, y4 = corners.groups()
    if (y0, x1, y2, x3) == (y1, x2, y3, x0) and x4 in (None, x0) and y4 in (None, y0):
        return f"M{x0} {y0}H{x1}V{y2}H{x0}z"
    return d


def _round(value: str, decimals: int) -> str:
    return re.sub(r"-?\d+\.\d+(?:e-?\d+)?", lambda m: _number(float(m[0]), decimals), value)


def _number(value: float | int, decimals: int = 2) -> str:
    text = f"{value:.{decimals}f}".rstrip("0").rstrip(".") if decimals else f"{value:.0f}"
    return "0" if text in ("-0", "") else text

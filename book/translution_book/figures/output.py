"""A figure as the value of a notebook cell: markup for the page, a sentence for the terminal."""

from collections.abc import Callable
from html import escape

from .svg import Drawing, drawing, fingerprint

__all__ = ["Output", "show"]

FIGURE_STYLE = "margin:1em auto;text-align:center;max-width:100%"
CAPTION_STYLE = "font-size:.9em;margin-top:.4em"


class Output:
    """HTML with a text alternative; with a kernel, `widget()` may build a live counterpart.

    Args:
        html: the static face, complete in itself: no network, no global names.
        alt: what the figure shows, in words.
        widget: builds an ipywidget, or None.
    """

    def __init__(self, html: str, alt: str, widget: Callable | None = None):
        self.html, self.alt, self.widget = html, alt, widget

    def __repr__(self) -> str:
        return f"figure: {self.alt}"

    def _repr_html_(self) -> str:
        return self.html

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        bundle: dict[str, object] = {"text/plain": repr(self), "text/html": self.html}
        if self.widget is not None and _has_kernel():
            view = self.widget()._repr_mimebundle_()
            bundle.update({kind: data for kind, data in view.items() if "widget-view" in kind})
        return bundle

    def save(self, path) -> None:
        """Write the HTML to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)


def show(fig, alt: str, caption: str | None = None, width: float | int | None = None) -> Output:
    """A matplotlib figure as an inline SVG that follows the page's theme; closes the figure.

    Args:
        fig: the figure; what it draws in black takes the page's text colour.
        alt: what the figure shows, for readers who do not see it.
        caption: a line below the figure; it may hold simple HTML.
        width: the largest width in CSS pixels, default: the natural one. A narrow page shrinks the figure.

    Raises:
        ValueError: if `alt` is empty.
    """
    alt = checked_alt(alt)
    picture = render(fig)
    uid = fingerprint(alt, str(caption))
    return Output(wrap(picture.svg(uid, alt, width), caption), alt)


def render(fig, box=None) -> Drawing:
    """The figure's drawing; the figure is closed, so that no front end shows it a second time."""
    import matplotlib.pyplot as plt

    picture = drawing(fig, box)
    plt.close(fig)
    return picture


def wrap(inside: str, caption: str | None, extra: str = "", attributes: str = 'class="tl-figure"') -> str:
    """The `<figure>` element around `inside`, with its caption and what follows it (data, script)."""
    note = f'<figcaption style="{CAPTION_STYLE}">{caption}</figcaption>' if caption else ""
    return f'<figure {attributes} style="{FIGURE_STYLE}">{inside}{note}{extra}</figure>'


def checked_alt(alt: str) -> str:
    """`alt`, or a ValueError if it says nothing."""
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"alt must say in words what the figure shows, got {alt!r}")
    return " ".join(alt.split())


def attribute(text: str) -> str:
    """Text fit for an HTML attribute."""
    return escape(text, quote=True)


def _has_kernel() -> bool:
    """Whether this runs in a Jupyter kernel with ipywidgets at hand."""
    try:
        import ipywidgets  # noqa: F401
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None

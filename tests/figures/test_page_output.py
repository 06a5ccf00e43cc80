"""What the page receives: stable, self-contained, named and theme-aware markup."""

import functools
import re
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from translution_book import figures
from translution_book.figures.svg import drawing

from translution_lib import offsets

VOID = {"input", "br", "img", "meta"}


class Page(HTMLParser):
    """Checks that tags are balanced; gathers ids, references to them, and addresses."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.ids, self.references, self.tags = [], [], set(), []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            pattern = r"^#(.+)" if name == "href" else r"url\(#([^)]+)\)"
            self.references |= set(re.findall(pattern, value or ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def line(k=1.0):
    fig, ax = plt.subplots()
    x = np.linspace(0, 1, 20)
    ax.plot(x, k * x, marker="o", label="$W_Q$ & <i>")
    ax.bar([0.5], [k], color="none", hatch="//")
    ax.legend()
    ax.set(xlabel="offset δ", ylabel=r"weight $\alpha_{ij}$", ylim=(0, 5))
    return fig


def weights(n):
    return torch.rand(n, n, generator=torch.Generator().manual_seed(0)).softmax(-1)


MAKERS = {
    "show": lambda alt="a line": figures.show(line(), alt=alt, caption="A line."),
    "heatmap": lambda alt="cells": figures.show(figures.heatmap(weights(5), text=True, colorbar=True), alt=alt),
    "large heatmap": lambda alt="many cells": figures.show(figures.heatmap(weights(21)), alt=alt),
    "frames": lambda alt="lines": figures.frames(line, [1, 2, 3], label="slope", alt=alt, start=1),
    "pointer_map": lambda alt="rows": figures.pointer_map(weights(5), (2, 2), cls=True, alt=alt, text=True),
    "pointer_map on an image": lambda alt="digit": figures.pointer_map(weights(4), (2, 2), image=weights(8), alt=alt),
    "linked_maps": lambda alt="ids": figures.linked_maps((2, 3), np.arange(24).reshape(6, 2, 2) % 4 - 1, alt=alt,
                                                         cmap="categorical", text=True),
    "relation_map": lambda alt="relations": figures.relation_map(offsets((2, 2), cls=True), alt=alt),
}  # fmt: skip
every_maker = pytest.mark.parametrize("name", MAKERS)


@functools.cache
def made(name):
    """The figure of a maker, drawn once for all tests."""
    figures.use_style()
    return MAKERS[name]()


@pytest.fixture(autouse=True)
def style():
    figures.use_style()
    yield
    assert plt.get_fignums() == [], "a figure was left open"


@every_maker
def test_bytes_depend_on_the_arguments_alone(name):
    assert MAKERS[name]().html == made(name).html


@every_maker
def test_markup_is_a_named_figure_that_asks_no_other_host(name):
    output = made(name)
    page = Page(output.html)
    assert page.tags[0][0] == "figure" and page.tags[0][1]["class"].startswith("tl-figure")
    drawings = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(drawings) == 1 and drawings[0]["role"] == "img" and drawings[0]["aria-label"] == output.alt
    assert "http" not in output.html and "xmlns" not in output.html and "<style" not in output.html
    for kind, source in re.findall(r'(href|src)="([^"]*)"', output.html):
        assert source.startswith(("#", "data:image/png;base64,")), (kind, source)
    assert output._repr_mimebundle_() == {"text/plain": f"figure: {output.alt}", "text/html": output.html}


@every_maker
def test_ids_are_unique_and_references_resolve(name):
    one, two = Page(made(name).html), Page(MAKERS[name](alt="another").html)
    assert len(set(one.ids)) == len(one.ids)
    assert not set(one.ids) & set(two.ids)
    assert one.references <= set(one.ids)


@every_maker
@pytest.mark.parametrize("alt", ["", "  \n"])
def test_a_figure_without_words_is_refused(name, alt):
    with pytest.raises(ValueError, match="alt must say in words"):
        MAKERS[name](alt=alt)
    plt.close("all")


def test_ink_follows_the_theme_and_coordinates_are_short():
    html = figures.show(line(), alt="a line").html
    assert "currentColor" in html and "#000000" not in html
    paths = " ".join(re.findall(r' (?:d|x|y|points)="([^"]*)"', html))
    assert re.search(r"\d", paths) and not re.search(r"\.\d{3}", paths)


def test_text_is_escaped_and_stays_text():
    html = figures.show(line(), alt='an <i>alt</i> with "quotes"').html
    assert 'aria-label="an &lt;i&gt;alt&lt;/i&gt; with &quot;quotes&quot;"' in html
    assert "<i>" not in html and "offset δ</text>" in html


def test_width_limits_the_drawing_and_the_box_scales_it():
    html = figures.show(line(), alt="a line", width=300).html
    left, top, width, height = map(float, re.search(r'viewBox="([^"]*)"', html)[1].split())
    assert "width:100%;max-width:300px;height:auto" in html
    assert (left, top) == (0, 0) and width > height > 100


def test_drawing_keeps_the_plotted_points():
    fig, ax = plt.subplots()
    ax.plot([0, 1, 2], [0, 1, 0])
    expected = ax.transData.transform([(0, 0), (1, 1), (2, 0)])
    ax.axis("off")
    fig.set_layout_engine("none")
    expected = ax.transData.transform([(0, 0), (1, 1), (2, 0)]) * 72 / fig.dpi
    pieces = "".join(drawing(fig, fig.bbox_inches).pieces)
    plt.close(fig)
    x0, y0, x1, y1, x2, y2 = map(float, re.search(r'd="M(\S+) (\S+)L(\S+) (\S+)L(\S+) (\S+)"', pieces).groups())
    height = fig.get_figheight() * 72
    drawn = np.array([(x0, height - y0), (x1, height - y1), (x2, height - y2)])
    np.testing.assert_allclose(np.diff(drawn, axis=0), np.diff(expected, axis=0), atol=0.02)


def test_save_writes_the_html(tmp_path):
    output = figures.show(line(), alt="a line")
    output.save(tmp_path / "line.html")
    assert (tmp_path / "line.html").read_text(encoding="utf-8") == output.html

"""Every figure that moves, in the browser: twice on a page, by keyboard, and without a trace in the page's names."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from translution_book import figures

from translution_lib import offsets

TABLE = offsets((2, 2))
PICTURE = np.eye(4)
LINES = [["a claim"], [figures.Tag("holds", figures.palette.green)]]


def line(k):
    fig, ax = plt.subplots(figsize=(2, 1.5))
    ax.plot([0, 1], [0, k])
    ax.set(ylim=(0, 3))
    return fig


def weights(n):
    return np.random.default_rng(0).dirichlet(np.ones(n), n)


def nodes():
    return {"a": figures.Node("less", (0, 0), "It is less."), "b": figures.Node("more", (0, 1), "It is more.")}


def runs():
    places = {"one": (1e6, 2e4), "two": (3e6, 9e4)}
    return [figures.Run(name, name, "digits", "static", paid, {"static": 95.0 + len(name)})
            for name, paid in places.items()]  # fmt: skip


MAKERS = {
    "attention_map": lambda: figures.attention_map(weights(4), TABLE, alt="Rows."),
    "diagram": lambda: figures.diagram(nodes(), [figures.Arrow("a", "b", "It is contained.")], alt="Two."),
    "draw": lambda: figures.draw_and_move((4, 4), {"one": figures.Encoding([[1.0]], [[1.0]])}, alt="Draw."),
    "estimator": lambda: figures.estimator(alt="Estimates."),
    "filter_table": lambda: figures.filter_table(
        ["claim", "status"], {"one": LINES, "two": LINES}, {"status": ["holds"] * 2, "page": ["1", "2"]}, alt="Bars.",
        caption="Claims.", bars=("page", {"holds": figures.palette.green})),
    "frames": lambda: figures.frames(line, [1, 2, 3], label="slope", alt="lines"),
    "globe": lambda: figures.globe(alt="A globe.", step=10),
    "linked": lambda: figures.pointer_map(weights(4), (2, 2), alt="Rows.", text=True),
    "placement": lambda: figures.placement(PICTURE, alt="A picture.", canvas=12, patch=4),
    "relation_map": lambda: figures.relation_map(TABLE, alt="Pairs."),
    "shifted": lambda: figures.shifted(PICTURE, {"map": np.random.default_rng(0).random((3, 4, 4))}, range(-1, 2),
                                       alt="A picture."),
    "side_by_side": lambda: figures.side_by_side(TABLE, [figures.OffsetMap("one", weights(9))], alt="Maps."),
    "trade_off": lambda: figures.trade_off(runs(), ["adds", "parameters"], alt="Runs.", upward="accuracy"),
}  # fmt: skip
each_figure = pytest.mark.parametrize("name", MAKERS)
FACE = """
const copy = document.querySelectorAll('.tl-figure')[arguments[0]].cloneNode(true);
copy.querySelectorAll('input, output, script').forEach(e => e.remove());
return copy.innerHTML;
"""


class Twice:
    """The same figure two times, with the page's names listed before and after."""

    def __init__(self, html):
        names = "<script>window.{} = Object.getOwnPropertyNames(window).length</script>"
        self.html = names.format("earlier") + html + html + names.format("later")


@each_figure
def test_both_copies_live_and_the_page_gets_no_names(name, opened):
    from selenium.webdriver.common.keys import Keys

    browser = opened(Twice(MAKERS[name]().html))
    assert browser.execute_script("return later - earlier") == 1, "the script leaves names behind"  # `earlier` itself
    assert browser.execute_script("return document.querySelectorAll('.tl-figure[data-ready]').length") == 2
    hidden = "return [...document.querySelectorAll('.tl-control')].filter(e => !e.offsetHeight).length"
    assert browser.execute_script(hidden) == 0
    control = {"diagram": "svg a", "filter_table": "input"}.get(name, "input[type=range]")
    controls = browser.find_elements("css selector", control)
    second, first_face, second_face = len(controls) // 2, *(browser.execute_script(FACE, k) for k in (0, 1))
    chosen = controls[second + (name == "diagram")]
    at_end = chosen.get_attribute("value") == chosen.get_attribute("max")
    chosen.send_keys({"diagram": Keys.TAB, "filter_table": "xyz"}.get(name, Keys.HOME if at_end else Keys.END))
    assert browser.execute_script(FACE, 1) != second_face, "the second copy stands still"
    assert browser.execute_script(FACE, 0) == first_face, "the first copy moves with the second"


def test_each_arrow_key_moves_the_drawn_object_its_own_way(opened):
    from selenium.webdriver.common.keys import Keys

    browser = opened(MAKERS["draw"]())
    down, right = browser.find_elements("css selector", "input[type=range]")[:2]
    for key, rows, columns in (("UP", -1, 0), ("LEFT", 0, -1), ("DOWN", 1, 0), ("RIGHT", 0, 1)):
        before = [int(slider.get_attribute("value")) for slider in (down, right)]
        down.send_keys(getattr(Keys, f"ARROW_{key}"))
        after = [int(slider.get_attribute("value")) for slider in (down, right)]
        assert np.subtract(after, before).tolist() == [rows, columns], key


@each_figure
def test_a_script_run_again_leaves_a_living_figure_alone(name, opened):
    html = MAKERS[name]().html
    code = re.search(r"<script>(.*)</script>", html, re.S)[1]
    browser = opened(Twice(html))
    counts = "return window.calls"
    browser.execute_script("window.calls = 0; const add = EventTarget.prototype.addEventListener; "
                           "EventTarget.prototype.addEventListener = function (...given) "
                           "{ window.calls += 1; return add.apply(this, given); }")  # fmt: skip
    browser.execute_script(code)
    assert browser.execute_script(counts) == 0

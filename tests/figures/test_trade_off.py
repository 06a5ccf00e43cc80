"""Accuracy against cost: where marks lie, what the choices leave, and that the page draws what Python drew."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.ticker import MaxNLocator
from translution_book import figures
from translution_book.figures import Run
from translution_book.figures.scales import in_few_digits, linear, logarithmic

ACROSS = ["multiply–adds", "parameters"]
RUNS = [
    Run("a <1>", "rotary", "digits", "static", (1_500_000, 20_000), {"static": 97.0, "dynamic": 18.5}),
    Run("b", "translution", "digits", "static", (30_000_000, 900_000), {"static": 98.0, "dynamic": 40.0}),
    Run("c", "translution", "digits", "dynamic", (30_000_000, 900_000), {"dynamic": 95.25}),
    Run("d", "absolute", "texts", "a text", (2_000_000, 5_000), {"1x": 9.5}),
]


def made(**changes):
    arguments = {"runs": RUNS, "across": ACROSS, "alt": "Runs.", "caption": "c",
                 "upward": {"digits": "accuracy in %", "texts": "perplexity"}}
    return figures.trade_off(**{**arguments, **changes})


def drawn(html):
    """What stands in the picture: marks as (shape, place, colour), words, the ring's place."""
    marks = re.findall(r'<path d="([^"]*)" transform="translate\(([^)]*)\)" fill="([^"]*)"', html)
    words = re.findall(r"<text [^>]*>([^<]*)<", html)
    return marks, words, re.findall(r'class="tl-ring" cx="([^"]*)" cy="([^"]*)"', html)


@given(st.floats(-1e3, 1e6), st.floats(0, 1e5))
def test_a_linear_scale_holds_its_numbers_at_round_steps(low, span):
    high = low + span
    bottom, top, step = linear(low, high)
    slack = 1e-6 * max(abs(low), abs(high), step)
    assert bottom <= low + slack and high - slack <= top and 1 <= round((top - bottom) / step) <= 7
    assert float(f"{step:.6e}"[:8]) in (1, 2, 5)
    if span > 1:
        nice = MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high)
        assert step >= (nice[1] - nice[0]) * (1 - 1e-6)  # no finer than matplotlib's


@given(st.floats(1, 1e12), st.floats(1.3, 1e6))
def test_logarithmic_ticks_are_few_round_and_inside(low, ratio):
    ticks = logarithmic(low, low * ratio)
    assert 2 <= len(ticks) <= 6 and ticks == sorted(set(ticks))
    for v in ticks:
        assert low <= v <= low * ratio and math.isclose(float(f"{v:.1e}"), v)


@pytest.mark.parametrize(("value", "text"), [(950, "950"), (1_000, "1 k"), (23_914, "23.9 k"), (1_448_432, "1.45 M"),
                                             (999_700, "1 M"), (4.2e10, "42 G")])  # fmt: skip
def test_costs_have_three_digits(value, text):
    assert in_few_digits(value) == text


def test_marks_lie_where_the_logarithm_of_the_cost_puts_them():
    marks, words, ring = drawn(made().html.split("<script")[0])
    places = [tuple(map(float, place.split())) for _, place, _ in marks]
    assert len(places) == 2 and ring == [tuple(marks[0][1].split())]
    low, high = math.log10(1.5e6) - 0.06, math.log10(3e7) + 0.06
    expected = [46 + 360 * (math.log10(v) - low) / (high - low) for v in (1.5e6, 3e7)]
    np.testing.assert_allclose([x for x, _ in places], expected, atol=0.06)
    assert places[0][1] > places[1][1] and {"97.0", "98.0", "10 M", "multiply–adds", "accuracy in %"} <= set(words)


def test_families_differ_in_colour_and_in_shape():
    html = made().html
    keys = re.findall(r'class="tl-key".*?<path d="([^"]*)" fill="([^"]*)".*?</svg> ([^<]*)<', html)
    assert [name for *_, name in keys] == ["absolute", "rotary", "translution"]
    assert len({shape for shape, *_ in keys}) == len({colour for _, colour, _ in keys}) == 3


def test_the_figure_is_named_stable_and_asks_no_other_host():
    output = made()
    assert output.alt.startswith("Runs. digits, trained on static, tested on static: 2 runs. a <1>: accuracy in % 97,")
    assert output.alt.endswith("multiply–adds 1.5 M") and made().html == output.html
    assert "http" not in output.html and "<1>" not in output.html.split("<script")[0]
    ids = re.findall(r'\bid="([^"]+)"', output.html)
    assert len(set(ids)) == len(ids)
    assert made(start=("texts",)).alt.startswith("Runs. texts, trained on a text, tested on 1x: 1 runs. d: perplexity")


@pytest.mark.parametrize(("changes", "message"), [
    ({"alt": " "}, "alt must say in words"),
    ({"runs": []}, "must not be empty, got 0 runs and 2 costs"),
    ({"across": ["one"]}, "run 'a <1>' must have 1 costs above zero"),
    ({"runs": [Run("x", "f", "t", "s", (0, 1), {"a": 1})]}, "run 'x' must have 2 costs above zero"),
    ({"runs": [Run("x", "f", "t", "s", (1, 1), {})]}, "at least one test, got \\(1, 1\\) and 0 tests"),
    ({"upward": {"digits": "accuracy"}}, "upward must name what is reached in digits, texts, got digits"),
    ({"start": ("digits", "dynamic", "static")}, "start must be choices that have runs"),
])  # fmt: skip
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)


SEEN = """return {html: document.querySelector('svg[role]').innerHTML, said: document.querySelector('output').value,
  label: document.querySelector('svg[role]').getAttribute('aria-label'),
  off: [...document.querySelectorAll('option:disabled')].map(o => o.textContent),
  pale: [...document.querySelectorAll('.tl-key')].map(e => +e.style.opacity < 1)}"""


def same(seen, output):
    """Whether the page shows what the still face of `output` shows."""
    assert drawn(seen["html"]) == drawn(output.html.split("</svg>")[0])
    assert seen["label"] == output.alt and output.alt.endswith(seen["said"])


def test_choices_slider_and_pointer_in_a_browser(opened):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    session = opened(made())
    task, trained, tested, across = session.find_elements("css selector", "select")
    slider = session.find_element("css selector", "input[type=range]")
    see = lambda: session.execute_script(SEEN)  # noqa: E731
    same(see(), made())
    assert see()["off"] == ["a text", "1x"] and see()["pale"] == [True, False, False]

    slider.send_keys(Keys.ARROW_RIGHT)
    assert see()["said"] == "b: accuracy in % 98, multiply–adds 30 M"
    assert see()["label"].endswith(see()["said"])
    across.send_keys("p")  # by the keyboard: the choice that begins so
    same(see(), made(start=("digits", "static", "static", "parameters")))
    tested.send_keys("d")
    same(see(), made(start=("digits", "static", "dynamic", "parameters")))
    trained.send_keys("d")
    same(see(), made(start=("digits", "dynamic", "dynamic", "parameters")))
    task.send_keys("t")  # nothing was tested so there: the other choices move to what has runs
    same(see(), made(start=("texts", "a text", "1x", "parameters")))
    task.send_keys(Keys.ARROW_UP)
    same(see(), made(start=("digits", "static", "static", "parameters")))

    marks = session.find_elements("css selector", ".tl-marks path")
    ActionChains(session).move_to_element(marks[1]).perform()
    assert see()["said"].startswith("b: ")
    ActionChains(session).move_to_element(marks[0]).perform()
    assert see()["said"].startswith("a <1>: ")

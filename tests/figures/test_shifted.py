"""Shifted pictures: the page draws the stored maps, what did not follow, and the change."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from translution_book import figures
from translution_book.figures.encoding import moved
from translution_book.figures.levels import LEVELS, cells, codes
from translution_book.figures.shifted import change

SHIFTS = range(-3, 4)
PICTURE = np.zeros((6, 8))
PICTURE[1:4, 3:5] = [[1, 0.5], [0.25, 0], [0, 1]]


def maps():
    """A layer that follows, one that does not, and one on a grid of half the size that follows even shifts."""
    rng = np.random.default_rng(0)
    pictures = np.stack([moved(PICTURE, (0, step)) for step in SHIFTS])
    return {"follows": 2 * pictures - 0.5, "absolute": pictures + rng.standard_normal(PICTURE.shape).round(2)}


def made(**options):
    return figures.shifted(PICTURE, options.pop("maps", maps()), options.pop("shifts", SHIFTS),
                           **({"alt": "A picture."} | options))  # fmt: skip


def data_of(output):
    return json.loads(re.search(r'class="tl-data">(.*?)</script>', output.html)[1])


def decoded(code, shape):
    return np.array([np.nan if c == "~" else (ord(c) - 79) / LEVELS for c in code]).reshape(shape)


def test_the_data_hold_the_maps_and_what_did_not_follow():
    data, given = data_of(made()), maps()
    for entry, row, (name, stack) in zip(data["maps"], data["changes"], given.items(), strict=True):
        high = np.abs(stack).max()
        for k, step in enumerate(SHIFTS):
            np.testing.assert_allclose(decoded(entry["shown"][k], (6, 8)), stack[k] / high, atol=0.5001 / LEVELS)
            expected = np.full((6, 8), np.nan)
            for y, x in np.ndindex(6, 8):
                if 0 <= x - step < 8:
                    expected[y, x] = stack[k, y, x] - stack[3, y, x - step]
            np.testing.assert_allclose(decoded(entry["left"][k], (6, 8)), np.clip(expected / high, -1, 1),
                                       atol=0.5001 / LEVELS)  # fmt: skip
            size = np.sqrt(np.nanmean(expected**2)) / np.sqrt(np.mean(stack[3] ** 2))
            assert row[k] == pytest.approx(size, abs=5.1e-5), name
    assert data["changes"][0] == [0] * 7 and data["labels"][0] == "−3"
    np.testing.assert_allclose(decoded(data["pictures"][6], (6, 8)), moved(PICTURE, (0, 3)), atol=0.5001 / LEVELS)


def test_a_map_of_patches_moves_in_proportion_and_pairs_move_both_ways():
    shifts = [(0, 0), (2, -2), (-2, 4)]
    coarse = np.arange(12.0).reshape(3, 4)
    stack = np.stack([moved(coarse, (down // 2, right // 2)) for down, right in shifts])
    data = data_of(made(maps={"patches": stack}, shifts=shifts, query=(3, 3)))
    assert data["changes"] == [[0, 0, 0]] and data["labels"][1] == "2 down, −2 right"
    assert data["places"] == [[3, 3], [1, 5], [7, 1]]
    with pytest.raises(ValueError, match=r"shifts must move a map of \(3, 4\) cells by whole cells, got \(0, 1\)"):
        made(maps={"patches": stack[:2]}, shifts=[0, 1])


def test_what_did_not_follow_is_painted_stronger_where_all_of_it_is_small():
    given = maps()
    given["absolute"] = given["follows"] + 0.04 * np.arange(7)[:, None, None]
    for options, gain, high in (({}, 10, 1.5), ({"magnify": 4}, 4, 1.5), ({"maps": {"f": given["follows"]}}, 1, 1.5)):
        output = made(**({"maps": given} | options))
        assert ("× " in output.html) is (gain > 1) and (gain == 1 or f"did not follow, × {gain}<" in output.html)
        left = [decoded(code, (6, 8)) for code in data_of(output)["maps"][-1]["left"]]
        expected = [0.04 * (k - 3) * gain / (high + 0.24) if gain > 1 else 0 for k in range(7)]
        np.testing.assert_allclose([np.nanmax(part) for part in left], expected, atol=0.5001 / LEVELS)


def test_given_changes_are_drawn_as_they_are():
    data = data_of(made(changes={"follows": np.linspace(0, 0.9, 7), "absolute": np.ones(7)}))
    assert data["changes"][0] == [0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9] and data["axes"]["y"] == [0, 1]


@given(st.lists(st.sampled_from("NOPZ~0"), min_size=12, max_size=12), st.sampled_from([1, 3, 4, 12]))
def test_the_cells_of_a_level_are_drawn_once_each(code, width):
    drawn = [""] * 12
    for d, paint in re.findall(r'<path d="([^"]*)" ([^>]*)/>', cells("".join(code), width)):
        opacity = float(re.search(r'fill-opacity="([^"]*)"', paint)[1])
        for x, y, run, back in re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z", d):
            assert run == back
            for column in range(int(x), int(x) + int(run)):
                assert drawn[int(y) * width + column] == ""
                drawn[int(y) * width + column] = f"{paint[6:13]} {opacity:.3f}"
    blue, orange, grey = (figures.palette[k] for k in (0, 1, 5))
    expected = {"N": f"{orange} 0.032", "O": "", "P": f"{blue} 0.032", "Z": f"{blue} 0.355", "~": f"{grey} 0.250",
                "0": f"{orange} 1.000"}  # fmt: skip
    assert drawn == [expected[c] for c in code]


def test_codes_and_changes_of_little():
    assert codes(np.array([[[np.nan, 0.0, 1.0, -1.0]]]), 1.0) == ["~On0"]
    left = np.array([[[0.0, np.nan]], [[3.0, np.nan]]])
    np.testing.assert_array_equal(change(np.array([[[2.0, 2.0]], [[5.0, 2.0]]]), left, 0), [0, 1.5])
    np.testing.assert_array_equal(change(np.zeros((2, 1, 2)), left, 0), [0, 3])


READ = """
return {panels: ['picture', 'shown', 'left'].map(c => [...document.querySelectorAll('.tl-' + c)].map(e => e.innerHTML
    .replaceAll('></path>', '/>'))),
  words: [...document.querySelectorAll('.tl-word')].map(e => e.textContent),
  labels: [...document.querySelectorAll('svg[role]')].map(e => e.getAttribute('aria-label')),
  dots: [...document.querySelectorAll('.tl-dot')].map(e => ['cx', 'cy'].map(a => Number(e.getAttribute(a)))),
  mark: [...document.querySelector('.tl-mark').attributes].map(a => a.value),
  value: Number(document.querySelector('input').value)};
"""


def same(seen, output):
    """Whether the page shows the still face of `output`."""
    still = output.html.split("<script")[0]
    for panels, name in zip(seen["panels"], ("picture", "shown", "left"), strict=True):
        assert panels == re.findall(rf'<g class="tl-{name}"[^>]*>(.*?)</g>', still)
    assert seen["words"] == re.findall(r'class="tl-word">([^<]*)<', still)
    assert seen["labels"] == re.findall(r'<svg role="img" aria-label="([^"]*)"', still)
    dots = [[float(x), float(y)] for x, y in re.findall(r'class="tl-dot" cx="([^"]*)" cy="([^"]*)"', still)]
    np.testing.assert_allclose(seen["dots"], dots, atol=0.11)
    assert seen["mark"] == re.findall(r'"([^"]*)"', re.search(r'<rect class="tl-mark"[^>]*>', still)[0])


def test_the_page_shows_every_shift_as_it_would_stand_still(opened):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = opened(made(query=(2, 6)))
    same(browser.execute_script(READ), made(query=(2, 6)))
    slider = browser.find_element("css selector", "input[type=range]")
    slider.send_keys(*[Keys.ARROW_LEFT] * 2)
    same(browser.execute_script(READ), made(query=(2, 6), start=4))
    slider.send_keys(Keys.HOME)
    same(browser.execute_script(READ), made(query=(2, 6), start=0))
    pixel = browser.execute_script("return document.querySelector('svg').getBoundingClientRect().width / 8")
    stage = browser.find_element("css selector", "svg")
    ActionChains(browser).click_and_hold(stage).move_by_offset(round(2 * pixel), 0).release().perform()
    seen = browser.execute_script(READ)
    assert seen["value"] == 2
    same(seen, made(query=(2, 6), start=2))


def test_bytes_depend_on_the_arguments_alone_and_every_drawing_is_named():
    one = made(caption="c")
    assert one.html == made(caption="c").html and "http" not in one.html
    assert one.alt.startswith("A picture. Shifted by 3: follows 0.000, absolute ")
    ids = re.findall(r' id="([^"]+)"', one.html)
    assert len(ids) == len(set(ids))
    assert len(re.findall(r"<svg ", one.html)) == len(re.findall(r"aria-label=\"[^\"]+\" viewBox", one.html)) + 2


@pytest.mark.parametrize(("change", "message"), [
    ({"alt": ""}, "alt must say"),
    ({"maps": {}}, "needs maps, and a shift of zero"),
    ({"shifts": range(1, 8)}, "needs maps, and a shift of zero"),
    ({"shifts": [*range(6), 8]}, r"must leave a part of the map of \(6, 8\) cells on its grid, got \(0, 8\)"),
    ({"start": 7}, "must hold one map for each of 7 shifts"),
    ({"maps": {"few": np.zeros((3, 6, 8))}}, "few must hold one map for each of 7 shifts"),
    ({"maps": {"large": np.zeros((7, 192, 256))}}, "maps must make at most 300000 bytes"),
])  # fmt: skip
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        made(**change)

"""Side by side: the colours and texts are those of the tables, and one pointer moves in all maps."""

import math
import re

import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup
from translution_book.figures import OffsetMap, palette, side_by_side

from translution_lib import offsets, pairs

RELATIONS = offsets((2, 3), cls=True)
M = 15  # offsets; three rows of CLS follow


def tables():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*size, generator=generator).round(decimals=3)
            for size in ((M,), (M, 4), (M + 3, 4), (M, 2), (M + 3, 3, 2))]  # fmt: skip


def maps():
    shows = (None, "norm", "cosine", "angle", None)
    return [OffsetMap(f"map {k}", table, show) for k, (table, show) in enumerate(zip(tables(), shows, strict=True))]


def made(**options):
    return side_by_side(RELATIONS, maps(), **({"alt": "Five tables."} | options))


def colours(k):
    """Signed opacities of the five maps at offset k."""
    bias, norms, cosines, angles, matrices = tables()
    cosines, norms, matrices = cosines[:M], norms.norm(dim=1), matrices[:M].flatten(1).norm(dim=1)
    return torch.stack([
        bias / bias.abs().max(), norms / norms.max(), torch.cosine_similarity(cosines, cosines[k : k + 1]),
        angles.cos().mean(1), matrices / matrices.max()])  # fmt: skip


def entries(k):
    """Signed opacities of the entries at offset k, where they are cells."""
    _, norms, cosines, _, matrices = tables()
    return [t[k].flatten() / t[:M].abs().max() for t in (norms, cosines, matrices)]


READ = """
const sign = r => (r.getAttribute('fill') === arguments[0] ? -1 : 1) * r.getAttribute('fill-opacity');
const all = (e, c) => [...e.querySelectorAll(c)];
return all(document, '.tl-card').map(e => ({
  cells: all(e, '.tl-l rect').map(sign), entry: all(e, '.tl-e rect').map(sign),
  frame: all(e, '.tl-l rect').findIndex(r => ['x', 'y'].every(
    a => r.getAttribute(a) === e.querySelector('.tl-a').getAttribute(a))),
  text: e.querySelector('.tl-t').textContent, name: e.querySelector('svg').getAttribute('aria-label'),
  angles: all(e, 'line').map(l => { const v = a => Number(l.getAttribute(a));
    return Math.atan2(v('y1') - v('y2'), v('x2') - v('x1')) })}));
"""


def compare(seen, k):
    bias, norms, _, angles, matrices = tables()
    assert [card["frame"] for card in seen] == [k] * 5
    cells = torch.tensor([card["cells"] for card in seen])
    torch.testing.assert_close(cells, colours(k), atol=2e-3, rtol=0)
    for card, expected in zip((seen[1], seen[2], seen[4]), entries(k), strict=True):
        torch.testing.assert_close(torch.tensor(card["entry"]), expected, atol=2e-3, rtol=0)
    turned = [math.remainder(a, 2 * math.pi) for a in angles[k].tolist()]
    np.testing.assert_allclose(seen[3]["angles"], turned, atol=1e-3)
    numbers = [bias[k], norms[k].norm(), None, angles[k].cos().mean(), matrices[k].norm()]
    words = ["", "norm ", "cosines with this entry", "mean cosine ", "norm "]
    for card, word, number in zip(seen, words, numbers, strict=True):
        shown = re.fullmatch(rf"{word}(.*)", card["text"])[1].replace("−", "-")
        assert (shown == "") if number is None else float(shown) == pytest.approx(float(number), abs=6e-4)
        assert card["name"].endswith(card["text"])


def test_one_pointer_moves_in_all_maps(opened):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = opened(made())
    compare(browser.execute_script(READ, palette.orange), 7)
    cell = browser.find_elements("css selector", ".tl-card:nth-child(3) .tl-l rect")[13]
    ActionChains(browser).move_to_element(cell).perform()
    compare(browser.execute_script(READ, palette.orange), 13)
    slider = browser.find_element("css selector", "input")
    slider.send_keys(Keys.ARROW_UP, Keys.ARROW_LEFT)
    compare(browser.execute_script(READ, palette.orange), 7)
    assert slider.get_attribute("aria-valuetext") == "δ = (0, 0)"
    slider.send_keys(Keys.HOME)
    compare(browser.execute_script(READ, palette.orange), 0)


@pytest.mark.parametrize("start", [0, 9])
def test_the_still_face_is_what_the_script_shows(opened, start):
    output = made(start=start)
    soup = BeautifulSoup(output.html.split("<script>")[0], "html.parser")
    seen = opened(output).execute_script(READ, palette.orange)
    assert [text.get_text() for text in soup.select(".tl-t")] == [card["text"] for card in seen]
    assert [svg["aria-label"] for svg in soup.select("svg")] == [card["name"] for card in seen]
    for card, now in zip(soup.select(".tl-card"), seen, strict=True):
        drawn = [float(r["fill-opacity"]) for r in card.select(".tl-l rect, .tl-e rect")]
        np.testing.assert_allclose(drawn, np.abs(now["cells"] + now["entry"]), atol=6e-4)
    assert output.alt == f"Five tables. δ = {RELATIONS.labels[start]}".replace("-", "−")


@pytest.mark.parametrize("relations", [offsets(4), offsets(4, causal=True), offsets((3, 3), clip=1)])
def test_every_offset_has_its_place(relations):
    table = torch.arange(float(relations.count))
    soup = BeautifulSoup(side_by_side(relations, [OffsetMap("ids", table)], alt="ids").html, "html.parser")
    places = [(float(r["y"]), float(r["x"])) for r in soup.select(".tl-l rect")]
    assert len(set(places)) == relations.count == len(places)
    assert sorted(places) == places, "row-major as the ids"


def test_bytes_depend_on_the_arguments_alone_and_ids_are_unique():
    html = made().html
    ids = re.findall(r' id="([^"]+)"', html)
    assert made().html == html and len(ids) == len(set(ids)) == 6
    assert "http" not in html and "<style" not in html and html.count('role="img"') == 5


@pytest.mark.parametrize(("change", "message"), [
    ({"maps": [OffsetMap("short", torch.ones(4))]}, "'short' must hold 15 entries"),
    ({"maps": [OffsetMap("odd", torch.ones(15), "phase")]}, "show='phase'"),
    ({"maps": [OffsetMap("flat", torch.ones(15), "cosine")]}, "show='cosine'"),
    ({"maps": [OffsetMap("large", torch.ones(15, 17, 16))]}, "at most 256 numbers"),
    ({"maps": []}, "maps a map"),
    ({"relations": pairs(4)}, "relations must hold offsets"),
    ({"start": 15}, "start must be an offset from 0 to 14"),
    ({"alt": " "}, "alt must say"),
])  # fmt: skip
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        side_by_side(**({"relations": RELATIONS, "maps": maps(), "alt": "tables"} | change))

"""The inclusion diagram: every node and arrow has a link and an entry, and the entries follow mouse and keyboard."""

import json
import re

import pytest
from bs4 import BeautifulSoup
from translution_book.figures import Arrow, Node, diagram, palette

NODES = {
    "a": Node("self-\nattention", (0, 0), "One matrix & <i>no</i> position.", {"parameters": "3"}, "#thm-a"),
    "b": Node("rotations", (1, 1)),
    "c": Node("Translution", (0, 2)),
    "d": Node("biases", (-1, 1)),
}
ARROWS = [
    Arrow("a", "b", "Angles zero.", r"\(R_0=I\). ∎", {"largest difference": "below 10⁻¹²"}, "#thm-b"),
    Arrow("b", "c", "A rotation is a matrix."),
    Arrow("d", "c", "Biases stay at zero input.", holds=False, bend=0.2),
]


def made(**options):
    return diagram(NODES, ARROWS, alt="Three inclusions.", **options)


def test_every_item_has_a_link_to_its_entry_and_the_entry_says_all():
    soup = BeautifulSoup(made().html, "html.parser")
    links, items = soup.select("svg a"), soup.select(".tl-item")
    assert len(links) == len(items) == 7
    assert [link["href"] for link in links] == [f"#{item['id']}" for item in items]
    assert all("text-decoration:none" in link["style"] for link in links), "names are no underlined links"
    titles = [link["aria-label"] for link in links]
    assert titles[0] == "self-attention" and titles[4:] == [
        "self-attention ⊂ rotations", "rotations ⊂ Translution", "biases ⊄ Translution"]  # fmt: skip
    assert [item.find("div").get_text() for item in items] == titles
    text = items[4].get_text(" ")
    for part in ("Angles zero.", r"\(R_0=I\). ∎", "largest difference: below 10⁻¹²"):
        assert part in text
    assert items[4].find("a")["href"] == "#thm-b" and items[0].find("i").get_text() == "no"
    assert soup.svg["role"] == "group" and soup.svg["aria-label"] == "Three inclusions."
    assert not soup.select(".tl-item[hidden]"), "without a script all entries are read"


def test_an_exclusion_is_dashed_and_crossed():
    paths = [link.select(".tl-mark path") for link in BeautifulSoup(made().html, "html.parser").select("svg a")[4:]]
    assert [len(marks) for marks in paths] == [2, 2, 3]
    assert ["stroke-dasharray" in marks[0].attrs for marks in paths] == [False, False, True]


def test_a_node_lights_what_contains_it_and_an_arrow_its_ends():
    data = json.loads(re.search(r'class="tl-data">(.*?)</script>', made().html)[1])
    assert data["lit"] == [[0, 1, 2, 4, 5], [1, 2, 5], [2], [3], [0, 1, 4], [1, 2, 5], [3, 2, 6]]


def test_arrows_start_and_end_outside_of_the_boxes():
    soup = BeautifulSoup(made().html, "html.parser")
    rects = [tuple(float(r[k]) for k in ("x", "y", "width", "height")) for r in soup.select("rect.tl-mark")]
    for path in soup.select('path[stroke="transparent"]'):
        numbers = [float(v) for v in re.findall(r"-?[\d.]+", path["d"])]
        for x, y in (numbers[:2], numbers[4:]):
            assert not any(l < x < l + w and t < y < t + h for l, t, w, h in rects)  # noqa: E741
            assert any(l - 6 < x < l + w + 6 and t - 6 < y < t + h + 6 for l, t, w, h in rects)  # noqa: E741


STATE = """
return [[...document.querySelectorAll('.tl-item')].flatMap((e, k) => e.offsetParent ? [k] : []),
  [...document.querySelectorAll('svg a')].flatMap((a, k) =>
    a.querySelector('.tl-mark').getAttribute('stroke') === arguments[0] ? [k] : [])];
"""


def test_click_and_keyboard_show_one_entry(opened):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = opened(made(start=4))
    assert browser.execute_script(STATE, palette.orange) == [[4], [0, 1, 4]]
    ActionChains(browser).click(browser.find_elements("css selector", "svg a rect")[0]).perform()
    assert browser.execute_script(STATE, palette.orange) == [[0], [0, 1, 2, 4, 5]]
    ActionChains(browser).send_keys(Keys.TAB, Keys.TAB, Keys.TAB).perform()
    assert browser.execute_script(STATE, palette.orange) == [[3], [3]]
    ActionChains(browser).send_keys(Keys.TAB, Keys.TAB, Keys.TAB, Keys.ENTER).perform()
    assert browser.execute_script(STATE, palette.orange) == [[6], [2, 3, 6]]
    assert browser.current_url.endswith("figure.html"), "the page does not jump"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(STATE, palette.orange)[0] == list(range(7))
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(STATE, palette.orange)[0] == [6]


def test_a_thin_arrow_is_hit_beside_its_line(opened):
    from selenium.webdriver import ActionChains

    browser = opened(made())
    line = browser.find_elements("css selector", 'svg path[stroke="transparent"]')[1]
    box = browser.execute_script(
        "const p = arguments[0].getPointAtLength(arguments[0].getTotalLength() / 2), m = arguments[0].getScreenCTM();"
        "return [m.a * p.x + m.e + 4, m.d * p.y + m.f]", line)  # fmt: skip
    actions = ActionChains(browser)
    actions.w3c_actions.pointer_action.move_to_location(*(round(v) for v in box))
    actions.w3c_actions.pointer_action.click()
    actions.perform()
    assert browser.execute_script(STATE, palette.orange)[0] == [5]


@pytest.mark.parametrize(("arrows", "options", "message"), [
    ([Arrow("a", "x", "…")], {}, "arrows must join two of the nodes"),
    ([Arrow("a", "a", "…")], {}, "arrows must join two of the nodes"),
    ([], {"start": 4}, "start must be an item from 0 to 3"),
    ([], {"alt": ""}, "alt must say"),
])  # fmt: skip
def test_bad_input_is_refused(arrows, options, message):
    with pytest.raises(ValueError, match=message):
        diagram(NODES, arrows, **({"alt": "inclusions"} | options))


def test_bytes_depend_on_the_arguments_alone():
    assert made().html == made().html and "http" not in made().html and "<style" not in made().html

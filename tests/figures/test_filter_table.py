"""The long table: its markup, and its choices, words, addresses and bars in a real browser."""

import re

import pytest
from translution_book import figures
from translution_book.figures import Link, Tag

COLOURS = {"holds": figures.palette.green, "fails": figures.palette.orange, "open": figures.palette.grey}
ROWS = {
    "one-a": ("1", "holds", "Softmax rows sum to one."),
    "one-b": ("1", "fails", "A <b>box</b> & a softmax are the same."),
    "two-a": ("2", "holds", "A convolution is contained."),
    "two-b": ("2", "holds", "Attention is contained."),
    "two-c": ("2", "open", "It is more accurate."),
}


def made(**changes):
    arguments = {
        "header": ["claim", "status"],
        "rows": {name: [[text, f"source {source}", (Link("proof", f"#{name}"), Link("there", "../a.html#b"))],
                        [Tag(status, COLOURS[status]), "a check"]] for name, (source, status, text) in ROWS.items()},
        "filters": {"source": [source for source, _, _ in ROWS.values()],
                    "status": [status for _, status, _ in ROWS.values()]},
        "bars": ("source", COLOURS), "alt": "Bars of two sources.", "caption": "All claims.",
        "words": {"1": "1: the first"},
    }  # fmt: skip
    return figures.filter_table(**{**arguments, **changes})


def test_the_whole_table_is_there_without_a_script():
    html = made().html
    body = html[html.index("<tbody"): html.index("</tbody>")]
    assert re.findall(r'<tr id="([^"]+)"', body) == list(ROWS) and "hidden" not in body
    assert "A &lt;b&gt;box&lt;/b&gt; &amp; a softmax are the same." in body and "<b>" not in html
    assert body.count('<th scope="row"') == 5 and html.count('<th scope="col"') == 2
    assert html.count("<caption") == 1 and 'href="../a.html#b"' in body
    assert re.search(r'class="tl-control"[^>]*style="display:none', html)  # the choices come with the script
    for control in re.findall(r"<(?:select|input)[^>]*>", html):
        before = html[: html.index(control)]
        assert before.rfind("<label") > before.rfind("</label"), control


def test_the_figure_is_named_stable_and_asks_no_other_host():
    output = made()
    assert output.alt == "Bars of two sources. 1: 1 holds, 1 fails; 2: 2 holds, 1 open."
    assert f'aria-label="{output.alt}"' in output.html and made().html == output.html
    assert "http" not in output.html and "<style" not in output.html
    ids = re.findall(r'\bid="([^"]+)"', output.html)
    assert len(set(ids)) == len(ids) and set(re.findall(r'labelledby="([^"]+)"', output.html)) <= set(ids)


def test_bars_are_divided_in_proportion():
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)" height="16"', made().html)]
    whole = sum(widths[:3])
    assert [w / whole for w in widths] == pytest.approx([1 / 2, 1 / 2, 0, 2 / 3, 0, 1 / 3], abs=2e-3)


@pytest.mark.parametrize(("changes", "message"), [
    ({"alt": " "}, "alt must say in words"),
    ({"caption": ""}, "rows and caption must not be empty"),
    ({"rows": {}}, "must not be empty, got 0 rows"),
    ({"rows": {"x": [["one cell"]]}}, "every row must have 2 cells"),
    ({"filters": {"source": ["1"], "status": ["holds"] * 5}}, "every filter 5 values; not so in source"),
    ({"bars": ("place", COLOURS)}, "bars must name a filter of source, status"),
    ({"bars": ("source", {"holds": "#000"})}, "colour all values of another"),
])  # fmt: skip
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)


SHOWN = "return [...document.querySelectorAll('tbody tr')].filter(r => r.checkVisibility()).map(r => r.id)"
SAID = "return document.querySelector('output').value"


def test_choices_words_and_addresses_narrow_the_table(opened):
    from selenium.webdriver.common.keys import Keys

    session = opened(made())
    source, status = session.find_elements("css selector", "select")
    words = session.find_element("css selector", "input[type=search]")
    shown = lambda: session.execute_script(SHOWN)  # noqa: E731
    sums = lambda: [e.text for e in session.find_elements("css selector", ".tl-n")]  # noqa: E731
    assert shown() == list(ROWS) and session.execute_script(SAID) == "5 of 5 rows"

    source.send_keys("2")  # by the keyboard: the choice that begins so
    assert shown() == ["two-a", "two-b", "two-c"] and sums() == ["0", "3"]
    status.send_keys("h")
    assert shown() == ["two-a", "two-b"] and session.execute_script(SAID) == "2 of 5 rows"
    name = session.find_element("css selector", "figure svg").get_attribute("aria-label")
    assert name == "Bars of two sources. 2: 2 holds."

    session.execute_script("location.hash = 'one-b'")  # an address of a hidden row shows it
    assert "one-b" in session.execute_async_script(f"setTimeout(() => arguments[0]((() => {{{SHOWN}}})()), 50)")
    assert source.get_property("value") == "" == status.get_property("value")

    words.send_keys("CONTAINED  source")
    assert shown() == ["two-a", "two-b"]
    words.send_keys(" no such")
    assert shown() == [] and sums() == ["0", "0"]
    words.send_keys(Keys.TAB, Keys.NULL)
    session.switch_to.active_element.send_keys(Keys.ENTER)  # the button after the search
    assert shown() == list(ROWS) and words.get_property("value") == ""


def test_paper_gets_the_whole_table(opened):
    session = opened(made())
    height = "return document.querySelector('.tl-scroll').style.maxHeight"
    assert session.execute_script(height) == "75vh"
    session.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert session.execute_script(height) == ""
    session.execute_script("dispatchEvent(new Event('afterprint'))")
    assert session.execute_script(height) == "75vh"

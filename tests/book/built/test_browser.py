"""The built pages in a real browser: wide and narrow, light and dark, served and opened as files.

Chromium and its driver are taken from the path, or from CHROMIUM and CHROMEDRIVER. Where there is none, these tests
are skipped; with CI=true they fail instead.
"""

import functools
import http.server
import json
import re
import threading
from importlib.resources import files
from urllib.parse import urlsplit

import chromium
import pytest
from browser import READY
from pages import by_name, pages

WIDE, NARROW = (1280, 900), (360, 740)
UNFOLD = """
document.querySelectorAll('details').forEach(e => e.open = true);
document.querySelectorAll('.toggle-hidden').forEach(e => e.classList.remove('toggle-hidden'));
"""
OVERFLOWING = """
const width = document.documentElement.clientWidth, article = document.querySelector('article');
const edge = article.getBoundingClientRect().right + 1;
const scrolls = e => e !== article &&
  (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
const cut = [...article.querySelectorAll('p, pre, table, svg, img, figure, dt, mjx-container, .math, input')]
  .filter(e => e.getBoundingClientRect().right > edge && !scrolls(e)).map(e => e.outerHTML.slice(0, 160));
const wide = document.scrollingElement.scrollWidth > width ? ['the page is wider than the window'] : [];
return wide.concat(cut.slice(0, 5));
"""
BROKEN_IMAGES = "return [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src.slice(0, 160))"
MATH_ERRORS = "return [...document.querySelectorAll('mjx-merror, merror')].map(e => e.textContent.slice(0, 160))"
SETTLED = """
const done = arguments[arguments.length - 1];
const frame = () => new Promise(requestAnimationFrame);
const finish = () => document.getAnimations().forEach(a => a.effect.getTiming().iterations === Infinity || a.finish());
frame().then(frame).then(finish).then(frame).then(frame).then(() => done(true));
"""
REACHED = """
const done = arguments[arguments.length - 1], end = performance.now() + 2000;
const scrolls = e => e.scrollWidth > e.clientWidth;
const reached = () => [...document.querySelectorAll('pre')].every(e => !scrolls(e) || e.tabIndex === 0);
const look = () => reached() || performance.now() > end ? done(reached()) : requestAnimationFrame(look);
look();
"""
LOADED = """
const loaded = ['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind));
return loaded.reduce((sum, entry) => sum + entry.decodedBodySize, 0);
"""
FIRST_LOAD = 2e6    # bytes, uncompressed, of all that a reader's first page asks for
FAINT = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const once = (ask, told = new Map()) => key => told.get(key) ?? told.set(key, ask(key)).get(key);
const rgba = once(color => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
});
const over = (top, below, opacity) => below.map((c, k) => top[k] * top[3] * opacity + c * (1 - top[3] * opacity));
const white = [255, 255, 255];
const ground = once(e => e ? over(rgba(getComputedStyle(e).backgroundColor), ground(e.parentElement), 1) : white);
const opacity = once(e => e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1);
const light = rgb => {
  const [r, g, b] = rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = new Set();
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const e = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || e.closest('svg, mjx-container, script, style, [disabled]')) continue;
  if (!e.getClientRects().length || getComputedStyle(e).visibility === 'hidden') continue;
  const style = getComputedStyle(e), below = ground(e), shown = opacity(e);
  const [a, b] = [light(over(rgba(style.color), below, shown)), light(below)].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5))
    found.add(`${style.color} on ${below.map(Math.round)}: ${e.outerHTML.slice(0, 120)}`);
}
return [...found].slice(0, 5);
"""
RULES = """
const done = arguments[arguments.length - 1];
const wcag = {type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']};
const told = result => result.violations.map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160))}`);
const rules = {'color-contrast': {enabled: arguments[0]}};
axe.run({runOnly: wcag, rules, resultTypes: ['violations']}).then(r => done(told(r)), e => done(String(e)));
"""
UNREAD = """
document.querySelectorAll('mjx-math[aria-hidden=true], svg[role=img]').forEach(e => e.replaceChildren());
document.querySelectorAll('div.highlight pre:not(:has(a))').forEach(e => e.replaceChildren(e.textContent));
"""
CONTENT = """
const copy = arguments[0].cloneNode(true);
copy.querySelectorAll('input, select, output, script').forEach(e => e.remove());
return copy.innerHTML + [...arguments[0].querySelectorAll('canvas')].map(c => c.toDataURL()).join();
"""
MOVE = """
const [slider, value] = arguments;
slider.value = value;
for (const kind of ['input', 'change']) slider.dispatchEvent(new Event(kind, {bubbles: true}));
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="session")
def address(html):
    """The book served on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(html)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One headless Chromium for all pages."""
    session = chromium.start(tmp_path_factory.mktemp("profile"))
    yield session
    session.quit()


def resize(browser, size):
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_async_script(SETTLED)


def scheme(browser, name):
    feature = {"name": "prefers-color-scheme", "value": name}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.execute_async_script(SETTLED)


def assert_nothing_is_cut(browser):
    """Light and wide, light and narrow, dark and narrow, dark and wide: one change at a time, each is a new layout."""
    assert browser.execute_script(OVERFLOWING) == browser.execute_script(FAINT) == [], "light, wide"
    for change, to in ((resize, NARROW), (scheme, "dark"), (resize, WIDE)):
        change(browser, to)
        assert browser.execute_script(OVERFLOWING) == [], f"after {change.__name__} {to}"
    assert browser.execute_script(FAINT) == [], "dark, wide"


def broken_rules(browser, contrast=False):
    """What axe-core finds against WCAG 2.1 AA. Contrast takes it seconds; `FAINT` finds the same in a tenth.

    What no screen reader enters (glyphs, strokes, colours of code) goes first: three quarters of a page's elements,
    and of the time. Of what keeps a rule axe is to report nothing, which halves the rest.
    """
    browser.execute_async_script(REACHED)   # the theme gives boxes that scroll to the keyboard 0.3 s after a change
    browser.execute_script(UNREAD)
    if not browser.execute_script("return Boolean(window.axe)"):
        browser.execute_script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf8"))
    return browser.execute_async_script(RULES, contrast)


def open_page(browser, url):
    browser.get("about:blank")     # the page before is not laid out again
    parts = urlsplit(url)          # nor are words marked that a test before has searched for
    origin = {"origin": f"{parts.scheme}://{parts.netloc}", "storageTypes": "local_storage"}
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", origin)
    resize(browser, WIDE)
    scheme(browser, "light")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(url)
    assert browser.execute_async_script(READY) is True
    browser.execute_script(UNFOLD)
    browser.execute_async_script(SETTLED)


def foreign_requests(browser, host):
    """What the page asked of anybody else, from the developer tools' own log."""
    found = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
            url = message["params"].get("request", message["params"])["url"]
            parts = urlsplit(url)
            if parts.scheme not in ("data", "blob", "about", "chrome") and parts.netloc != host:
                found.append(url)
    return found


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def brightness(browser):
    """The page's background, 0 for black to 1 for white."""
    color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3]) / (3 * 255)


def move_by_key(browser, slider):
    """Press End, or Home where the slider already stands at its end."""
    from selenium.webdriver.common.keys import Keys

    at_end = browser.execute_script("return Number(arguments[0].value) === Number(arguments[0].max)", slider)
    slider.send_keys(Keys.HOME if at_end else Keys.END)


def assert_alive(browser, slider):
    """A slider changes its figure by the keyboard, and back by its event."""
    figure = browser.execute_script("return arguments[0].closest('.tl-interactive')", slider)
    name = slider.get_attribute("aria-label")
    start, value = browser.execute_script(CONTENT, figure), slider.get_attribute("value")
    move_by_key(browser, slider)
    moved = browser.execute_script(CONTENT, figure)
    assert moved != start, f"the slider {name!r} changes nothing"
    browser.execute_script(MOVE, slider, value)
    assert browser.execute_script(CONTENT, figure) != moved, f"the slider {name!r} does not come back"


@pytest.mark.parametrize("page", pages(), ids=by_name)
def test_a_page_in_the_browser(browser, address, page):
    open_page(browser, f"{address}/{page.name}.html")
    assert 1e5 < browser.execute_script(LOADED) <= FIRST_LOAD
    assert browser.execute_script(MATH_ERRORS) == []
    assert browser.execute_script(BROKEN_IMAGES) == []
    in_the_light = brightness(browser)
    assert_nothing_is_cut(browser)
    assert in_the_light > 0.5 > brightness(browser), "the theme does not follow the reader's setting"
    for slider in browser.find_elements("css selector", ".tl-interactive input[type=range]"):
        assert_alive(browser, slider)
    assert broken_rules(browser) == []
    assert foreign_requests(browser, urlsplit(address).netloc) == []
    assert complaints(browser) == []


@pytest.mark.parametrize("opacity", (0.9, 0.95))
def test_faint_text_is_found_as_axe_finds_it(browser, address, opacity):
    open_page(browser, f"{address}/search.html")
    text = f'<p style="background: #fdf1e8; color: #222; opacity: {opacity}"><span style="color: #666">faint</span></p>'
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", text)
    found = browser.execute_script(FAINT)
    assert len(found) == len(broken_rules(browser, contrast=True)) == (opacity < 0.92)


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_words_that_a_search_marks_can_be_read(browser, address, theme):
    open_page(browser, f"{address}/book/experiments/static_dynamic.html?highlight=translution")
    assert browser.find_elements("css selector", "a span.highlighted"), "no marked word in a link"
    scheme(browser, theme)
    assert browser.execute_script(FAINT) == []


def with_every_script():
    """The first pages that have all scripts of moving figures between them, and every page that has no notebook."""
    seen = set()
    for page in pages():
        shown = "".join(output.get("data", {}).get("text/html", "") for c in page.code_cells for output in c.outputs)
        scripts = set(re.findall(r'"use strict";(.*?)start\("', shown, re.DOTALL))
        if not page.is_notebook or scripts - seen:
            seen |= scripts
            yield page


@pytest.mark.parametrize("page", list(with_every_script()), ids=by_name)
def test_a_page_opened_as_a_file(browser, html, page):
    open_page(browser, (html / f"{page.name}.html").as_uri())
    assert browser.execute_script(MATH_ERRORS) == []
    assert browser.execute_script(BROKEN_IMAGES) == []
    for slider in browser.find_elements("css selector", ".tl-interactive input[type=range]")[:1]:
        assert_alive(browser, slider)
    assert foreign_requests(browser, "") == []
    assert complaints(browser) == []


def test_a_page_of_source_code_in_the_browser(browser, address):
    open_page(browser, f"{address}/_modules/translution_lib/functional/rotary.html")
    assert_nothing_is_cut(browser)
    assert broken_rules(browser) == []
    assert foreign_requests(browser, urlsplit(address).netloc) == []
    assert complaints(browser) == []


def test_the_front_door_leads_to_the_first_page(browser, address):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{address}/index.html")
    WebDriverWait(browser, 10).until(lambda b: b.current_url.endswith(f"{pages()[0].name}.html"))


def test_the_search_finds_a_word(browser, address):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{address}/search.html?q=translution")
    WebDriverWait(browser, 15).until(lambda b: b.find_elements("css selector", "#search-results li a"))


def test_the_search_finds_an_equation_by_its_label(browser, address):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{address}/search.html?q=eq-rotations-rope")
    index = "#search-results li a[href*='book/back/labels.html']"
    WebDriverWait(browser, 15).until(lambda b: b.find_elements("css selector", index))


@pytest.mark.parametrize("query, name, anchor", (
    ("13.3", "Equation (13.3)", "rotations.html#equation-eq-rotations-score"),
    ("theorem 13.2", "Theorem 13.2", "rotations.html#thm-rotations-rope"),
))
def test_the_search_finds_an_equation_or_a_theorem_by_its_number(browser, address, query, name, anchor):
    open_page(browser, f"{address}/search.html?q={query}")
    links = browser.find_elements("css selector", f"#search-numbers a[href$='{anchor}']")
    assert [link.text for link in links] == [name]
    assert complaints(browser) == []

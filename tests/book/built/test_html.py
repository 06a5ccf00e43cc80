"""The built pages: all there, complete, nothing from another host, every picture described, no dead link."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, NavigableString
from pages import by_name, labels, pages, titles

# Typed and not derived: a book that lost a page must not pass because its table of contents lost it too.
SENTENCES = {
    "book/front/welcome": "Who shares them with whom?",
    "book/front/guide": "Nobody needs all of it.",
    "book/front/notation": "Every displayed equation that states something has a number.",
    "book/front/running": "Everything you see was computed once and stored with the page.",
    "book/neighbours/convolution": "the other sign reflects the kernel",
    "book/neighbours/self_attention": "Softmax weights are positive and sum to one.",
    "book/neighbours/relations": "Operators on tokens differ in which ordered pairs share parameters.",
    "book/translution/operator": "Pairs of one offset share one matrix product",
    "book/translution/contains": "is not a softmax row",
    "book/translution/equivariance": "For an object on a fixed grid of tokens the answer depends on the background",
    "book/translution/low_rank": "two shared bases, one small core per offset",
    "book/translution/cost": "The printed FLOPs come from a counter that ignores broadcasting.",
    "book/translution/fitting": "Kept, the rows cost memory; computed again, they cost products",
    "book/translution/continuous": "A sum of bells at least half as wide as their spacing can have its top",
    "book/encodings/vectors": "The offset never changes the matrices that a content meets",
    "book/encodings/scalars": "a gated head is two softmax heads. Its weights are never those of one",
    "book/encodings/rotations": "Turn both by an angle that grows with the position",
    "book/encodings/taxonomy": "Translution with a constant channel is that form",
    "book/linear/random_features": "Raw QR biases positive features in the mean",
    "book/linear/relative_performers": "The kernel values of rotations and strategy 1 join content and place",
    "book/geometry/transport": "a loop turns a vector by the enclosed area",
    "book/geometry/riemannformer": "One matrix per place absorbs the metric",
    "book/experiments/static_dynamic": "its own offsets are all met; those never met lie between ink and background",
    "book/experiments/paper_size": "Compare with no position at all. Trained in the centre it read more",
    "book/experiments/moving_digits": "Train longer before you compare. On moving digits",
    "book/experiments/preprint": "At depth 1 there is then no relative encoding",
    "book/experiments/performers": "Without positions a curve under shifts by whole tokens is flat for any weights.",
    "book/experiments/riemannformer_cifar": "cannot tell a mirrored or turned arrangement from the original",
    "book/experiments/photographs": "Sinusoids know from the start that neighbouring places are alike.",
    "book/experiments/language": "Perplexity is the exponential of the mean loss per token.",
    "book/experiments/imagenet": "no picture is repeated or dropped",
    "book/experiments/verdict": "Exact statements are cheap and final.",
    "book/experiments/rule": "A verdict needs a rule that was fixed before",
    "book/experiments/sharing": "Clipping and buckets save parameters, and in the layers here no work.",
    "book/experiments/ledger": "A program decides the others from formulas",
    "book/experiments/cluster": "Everything else may die.",
    "book/encodings/your_own": "a formula has no edge, a table has",
    "book/back/promises": "a repaired file is accepted",
    "book/back/errata": "The preprint reports curves and no table",
    "book/back/glossary": "Reading zeros outside the grid",
    "book/back/labels": "The labels are the names that the code, the tests and the checks in the pages share.",
    "book/back/api": "One relation per offset",
    "book/back/bibliography": "Attention is all you need",
}
OTHER_HOST = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)
FETCHED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "link": ("href",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
}
NOT_FETCHED = {"canonical", "next", "prev", "search", "index", "author", "copyright", "license"}

each_page = pytest.mark.parametrize("page", pages(), ids=by_name)


@cache
def parsed(file: Path) -> BeautifulSoup:
    return BeautifulSoup(file.read_text(encoding="utf8"), "html.parser")


@cache
def places(file: Path) -> set[str]:
    """What a link into a page may name."""
    elements = parsed(file).find_all(True)
    return {element[name] for element in elements for name in ("id", "name") if name in element.attrs}


@pytest.fixture
def soup(html, page) -> BeautifulSoup:
    return parsed(html / f"{page.name}.html")


@pytest.fixture
def article(soup):
    return soup.find("article")


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_book_has_its_pages(html):
    built = {path.relative_to(html).with_suffix("").as_posix() for path in (html / "book").rglob("*.html")}
    assert built == set(SENTENCES) == {page.name for page in pages()}
    assert "book/front/welcome.html" in (html / "index.html").read_text()


@each_page
def test_a_page_says_what_it_should(article, page):
    assert SENTENCES[page.name]
    assert SENTENCES[page.name] in words(article.get_text())


@each_page
def test_a_page_has_every_output_of_its_notebook(article, page):
    outputs = sum(1 for cell in page.code_cells if cell.outputs)
    assert len(article.select("div.cell_output")) == outputs
    assert len(article.select("div.cell")) >= len(page.code_cells)


@each_page
def test_a_page_fetches_nothing_from_another_host(soup):
    found = []
    for tag, attributes in FETCHED.items():
        for element in soup.find_all(tag):
            if not NOT_FETCHED & set(element.get("rel", [])):
                found += [element[name] for name in attributes if OTHER_HOST.match(element.get(name, ""))]
    assert not found


@each_page
def test_a_page_has_no_style_from_another_host(soup, html):
    styles = [style.get_text() for style in soup.find_all("style")] + [tag["style"] for tag in soup.select("[style]")]
    assert not [text for text in styles if re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text)]


def test_no_stylesheet_fetches_from_another_host(html):
    for file in html.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", file.read_text(encoding="utf8")), file


@each_page
def test_every_picture_is_described(article):
    for image in article.find_all("img"):
        assert image.get("alt", "").strip(), str(image)[:200]
    for svg in article.find_all("svg"):
        hidden = svg.get("aria-hidden") == "true" or svg.find_parent("svg") or svg.find_parent("button")
        named = svg.get("aria-label", "").strip() or svg.find("title", recursive=False)
        role = "group" if svg.find("a") else "img"  # a picture hides its links from a screen reader
        assert hidden or (svg.get("role") == role and named), str(svg)[:200]


@each_page
def test_every_control_has_a_name(article):
    for control in article.select(".tl-interactive input, .tl-interactive select, .tl-interactive button"):
        name = control.get("aria-label", "") or control.get_text() or control.get("title", "")
        assert name.strip() or control.find_parent("label"), str(control)


@each_page
def test_a_moving_figure_shows_something_without_a_script(article):
    for figure in article.select(".tl-interactive"):
        picture = figure.find("svg") or figure.find("img")
        assert picture is not None, str(figure)[:200]
        assert picture.get("src") or picture.find(["path", "rect", "circle", "line", "use", "image"]), str(figure)[:200]


@each_page
def test_every_link_inside_the_book_arrives(html, page, article):
    here = html / f"{page.name}.html"
    for link in article.select("a[href]"):
        parts = urlsplit(link["href"])
        if parts.scheme or parts.netloc:
            continue
        target = (here.parent / unquote(parts.path)).resolve() if parts.path else here
        assert target.exists(), link["href"]
        if parts.fragment and target.suffix == ".html":
            assert unquote(parts.fragment) in places(target), link["href"]


def test_the_index_leads_from_every_label_to_its_statement(html):
    for page in pages():
        for label in labels(page.text):
            entry = parsed(html / "book/back/labels.html").find("code", string=label).find_parent("li")
            place = rf"/{page.name.split('/')[-1]}\.html#(?:equation-)?{label}"
            assert re.search(f"{place}$", entry.find("a")["href"]), label


def entries(html: Path, kinds: str) -> list:
    return parsed(html / "book/back/api.html").select(", ".join(f"dl.py.{kind}" for kind in kinds.split()))


def test_every_function_and_class_of_the_api_has_its_source(html):
    assert entries(html, "function class exception method")
    for entry in entries(html, "function class exception method"):
        sources = entry.find("dt").select('a[href*="/_modules/"]')
        assert sources, entry.find("dt").get_text()


def test_every_class_of_the_api_leads_to_its_chapter(html):
    chapters = {f"{page.name}.html" for page in titles().values()}
    for entry in entries(html, "class exception"):
        name = entry.find("dt")["id"]
        links = [urlsplit(a["href"]).path.replace("../", "book/", 1) for a in entry.find("dd").select("a[href]")]
        assert name.startswith("translution_book.figures.") or chapters & set(links), name


def test_no_page_of_sources_fetches_from_another_host(html):
    files = sorted((html / "_modules").rglob("*.html"))
    assert files
    for file in files:
        page = parsed(file)
        fetched = [element.get(name, "") for tag, names in FETCHED.items() for element in page.find_all(tag)
                   for name in names if not NOT_FETCHED & set(element.get("rel", []))]
        assert not [address for address in fetched if OTHER_HOST.match(address)], file


def texts(element):
    """The texts within an element that are no code."""
    for child in element.children:
        if isinstance(child, NavigableString):
            yield child
        elif child.name not in ("pre", "code", "script", "style", "svg"):
            yield from texts(child)


@each_page
def test_no_markup_is_left_unread(article):
    """A misspelled role or a directive that was not parsed shows up as text."""
    prose = " ".join(texts(article))
    leftover = re.search(r"\{(?:eq|cite|doc|ref|prf:\w+|term|numref)\}|:label:|```|\$\$|-(?:start|end)\}", prose)
    assert leftover is None, prose[max(0, leftover.start() - 80) : leftover.end() + 80]


@each_page
def test_no_traceback_is_published_unless_the_page_means_it(article, page):
    expected = sum(1 for cell in page.code_cells for output in cell.outputs if output.output_type == "error")
    assert len(article.select(".output.traceback")) == expected

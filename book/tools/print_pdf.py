"""Print the built book as one PDF, page by page through a headless Chromium: outline, still figures, living links.

The whole book takes minutes::

    python book/tools/print_pdf.py _build/html _build/translution-book.pdf
"""

import base64
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import browser
from pages import Page, pages
from pypdf import PageObject, PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, FloatObject, NameObject, NullObject
from tqdm import tqdm

PAPER = {"paperWidth": 8.27, "paperHeight": 11.69, "scale": 0.75,
         "marginTop": 0.7, "marginBottom": 0.7, "marginLeft": 0.7, "marginRight": 0.7,
         "printBackground": True, "generateDocumentOutline": True}
LEFT_OUT = ("/_modules/", "/_sources/", "/_images/", "/genindex.html")   # parts of the site, no pages of the book
# Proofs and solutions are unfolded, code that the page folds stays folded. Chromium names the place of an element
# in the PDF if a link of the same document leads to it, so every element with a name gets a link, without a size.
PREPARE = """
document.querySelectorAll('details:not(.hide)').forEach(e => e.open = true);
document.querySelectorAll('.toggle-hidden').forEach(e => e.classList.remove('toggle-hidden'));
const article = document.querySelector('article');
for (const e of article.querySelectorAll('[id]')) {
  const link = article.appendChild(document.createElement('a'));
  link.href = '#' + e.id;
}
return document.title.split(' — ')[0];
"""
Place = tuple[int, float | None]    # a page of the PDF, from 0, and the height on it


@dataclass
class Printed:
    """One page of the book, printed: its title, its PDF, how many sheets of it count, and its first in the whole."""

    title: str
    pdf: PdfReader
    sheets: int
    first: int

    def places(self) -> dict[str, Place]:
        """Where its elements with a name stand; "" is its beginning."""
        numbers = {sheet.indirect_reference: n for n, sheet in enumerate(self.pdf.pages[: self.sheets])}
        found: dict[str, Place] = {"": (self.first, None)}
        for name, to in self.pdf.named_destinations.items():
            if (number := numbers.get(to.page)) is not None:
                found[unquote(name.lstrip("/"))] = (self.first + number, None if to.top is None else float(to.top))
        return found


def print_page(session: Any, address: str) -> tuple[str, PdfReader]:
    """Return the title and the PDF of a page."""
    session.get(address)
    if (answer := session.execute_async_script(browser.READY)) is not True:
        raise RuntimeError(f"{address}: {answer}")
    title = session.execute_script(PREPARE)
    data = session.execute_cdp_cmd("Page.printToPDF", PAPER)["data"]
    return title, PdfReader(BytesIO(base64.b64decode(data)))


def written(pdf: PdfReader) -> int:
    """The number of sheets without the empty ones at the end: Chromium adds one where the text fills the last."""
    return max(n for n, sheet in enumerate(pdf.pages, start=1) if not is_empty(sheet))


def is_empty(sheet: PageObject) -> bool:
    """Whether a sheet has neither text nor a picture."""
    resources: Any = sheet["/Resources"]
    return not sheet.extract_text().strip() and "/XObject" not in resources


def print_pages(html: Path, book: Iterable[Page]) -> dict[str, Printed]:
    """Print pages of the book, by their addresses."""
    printed, first = {}, 0
    with tempfile.TemporaryDirectory() as profile:
        session = browser.start(Path(profile))
        try:
            for page in tqdm(list(book), desc="pages", disable=None):
                address = (html / f"{page.name}.html").as_uri()
                title, pdf = print_page(session, address)
                printed[address] = Printed(title, pdf, written(pdf), first)
                first += printed[address].sheets
        finally:
            session.quit()
    return printed


def target(link: DictionaryObject, here: str) -> str | None:
    """The address to which an annotation of a page leads, if it is a link."""
    action = link.get("/A", {})
    if "/URI" in action:
        return str(action["/URI"])
    name = link.get("/Dest", action.get("/D"))
    return f"{here}#{unquote(str(name).lstrip('/'))}" if name is not None else None


def relink(whole: PdfWriter, printed: dict[str, Printed]) -> list[str]:
    """Let links between printed pages lead to places of the PDF; return those that should and do not.

    A link to a part of the site that is no page of the book is taken away.
    """
    places = {address: page.places() for address, page in printed.items()}
    lost = []
    for here, page in printed.items():
        for sheet in whole.pages[page.first : page.first + page.sheets]:
            kept = ArrayObject()
            for entry in sheet.get("/Annots", []):
                link = entry.get_object()
                address, name = urldefrag(target(link, here) or "")
                if address in places and (place := places[address].get(unquote(name))) is not None:
                    lead_to(link, whole, place)
                elif address.startswith("file:"):
                    if not any(part in address for part in LEFT_OUT):
                        lost.append(f"{address}#{name}")
                    continue
                kept.append(entry)
            sheet[NameObject("/Annots")] = kept
    return lost


def lead_to(link: DictionaryObject, whole: PdfWriter, place: Place) -> None:
    """Make an annotation lead to a place of the PDF."""
    number, top = place
    height = NullObject() if top is None else FloatObject(top)
    link.pop("/A", None)
    sheet = whole.pages[number].indirect_reference
    link[NameObject("/Dest")] = ArrayObject([sheet, NameObject("/XYZ"), NullObject(), height, NullObject()])


def one_pdf(printed: dict[str, Printed]) -> tuple[PdfWriter, list[str]]:
    """Return all pages as one PDF with an outline, and the links between pages that lead to no place in it."""
    whole = PdfWriter()
    for page in printed.values():
        whole.append(page.pdf, pages=(0, page.sheets), outline_item=page.title, import_outline=True)
    lost = relink(whole, printed)
    whole.add_metadata({"/Title": "How should attention know where things are? The Translution book"})
    whole.compress_identical_objects()
    return whole, lost


def main(html: Path, out: Path) -> int:
    """Print the book; the exit status says whether every link between its pages found its place."""
    whole, lost = one_pdf(print_pages(html.resolve(), pages()))
    part = out.with_suffix(".part")
    whole.write(part)
    part.replace(out)
    print(json.dumps({"pages": len(whole.pages), "bytes": out.stat().st_size, "lost links": sorted(set(lost))[:20]}))
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

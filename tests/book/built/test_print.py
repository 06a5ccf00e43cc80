"""Pages printed as one PDF: nothing empty, an outline, links that lead to their places."""

import chromium
import print_pdf
import pytest
from pages import pages

NAMES = ("book/front/guide", "book/encodings/rotations", "book/back/labels")


@pytest.fixture(scope="module")
def printed(html):
    chromium.wanted()
    return print_pdf.print_pages(html, [page for page in pages() if page.name in NAMES])


@pytest.fixture(scope="module")
def whole(printed):
    return print_pdf.one_pdf(printed)


def test_no_sheet_is_empty(whole):
    sheets = whole[0].pages
    assert len(sheets) > len(NAMES)
    assert [n for n, sheet in enumerate(sheets) if print_pdf.is_empty(sheet)] == []


def test_the_outline_has_the_pages_and_their_sections(whole):
    titles = [entry.title for entry in whole[0].outline if not isinstance(entry, list)]
    sections = [entry for entry in whole[0].outline if isinstance(entry, list)]
    assert len(titles) == len(NAMES)
    assert any("Rotations" in title for title in titles)
    assert len(sections) == len(NAMES)


def test_a_link_between_printed_pages_leads_to_its_sheet(printed, whole):
    writer, lost = whole
    rotations = next(page for address, page in printed.items() if address.endswith("rotations.html"))
    sheet, top = rotations.places()["equation-eq-rotations-rope"]
    assert rotations.first <= sheet < rotations.first + rotations.sheets
    labels = next(page for address, page in printed.items() if address.endswith("labels.html"))
    links = [link.get_object() for page in writer.pages[labels.first :] for link in page["/Annots"]]
    leads = [link["/Dest"] for link in links if "/Dest" in link]
    there = writer.pages[sheet].indirect_reference
    assert any(to[0] == there and abs(float(to[3]) - top) < 1 for to in leads if to[0] == there)
    assert [address for address in lost if any(f"{name}.html" in address for name in NAMES)] == []

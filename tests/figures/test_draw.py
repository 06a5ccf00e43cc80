"""Draw and move: the page's own attention is torch's, and its verdict is the theorem's."""

import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_book import figures
from translution_book.figures.encoding import attend, follow, moved

from translution_lib import offsets
from translution_lib.functional import self_attention, translution

SHAPE, C, E = (3, 4), 2, 2
RELATIONS = offsets(SHAPE)
M = RELATIONS.count
INKS = {"first": (1.0, -0.5), "second": (0.25, 2.0)}


def rounded(*shape):
    return torch.randn(*shape, dtype=torch.float64).round(decimals=3)


def every_kind():
    """One encoding for each term of the general form, and two heads."""
    A, B = rounded(C, C), rounded(C, E)
    return {
        "self-attention": figures.Encoding(A, B),
        "absolute": figures.Encoding(A, B, absolute=rounded(12, C)),
        "key vectors": figures.Encoding(A, B, b=rounded(M, C), c=rounded(C)),
        "value vectors": figures.Encoding(A, B, r=rounded(M, E)),
        "biases, window": figures.Encoding(A, B, d=rounded(M), window=1),
        "Translution": figures.Encoding(rounded(M, C, C), rounded(M, C, E)),
        "cyclic, two heads": [figures.Encoding(rounded(M, C, C), rounded(M, C, E), cyclic=True) for _ in range(2)],
    }


def figure(encodings=None, **options):
    kinds = np.zeros(SHAPE, dtype=int)
    kinds[0, 1], kinds[1, 1] = 1, 2
    point = np.zeros(SHAPE, dtype=int)
    point[1, 1] = 1
    options = {"alt": "encodings", "inks": INKS, "objects": {"pair": kinds, "point": point}} | options
    return figures.draw_and_move(SHAPE, every_kind() if encodings is None else encodings, **options)


def equation(encoding, x):
    """Attention and output of one head, from the equation, pair by pair, in torch."""
    t = lambda v, *shape: torch.as_tensor(v, dtype=torch.float64).expand(*shape)  # noqa: E731
    p = RELATIONS.positions
    delta = p[:, None] - p[None]
    number = RELATIONS.index
    if encoding.cyclic:
        wrapped = (delta % torch.tensor(SHAPE)).tolist()
        number = torch.tensor([[RELATIONS.id_of(tuple(d)) for d in row] for row in wrapped])
    f = x if encoding.absolute is None else x + encoding.absolute
    A, B = t(encoding.A, M, C, C)[number], t(encoding.B, M, C, E)[number]
    b, c = t(encoding.b, M, C)[number], t(encoding.c, M, C)[number]
    scores = torch.einsum("ia,ijab,jb->ij", f, A, f) + torch.einsum("ia,ija->ij", f, b)
    scores = scores + torch.einsum("ija,ja->ij", c, f) + t(encoding.d, M)[number]
    if encoding.window is not None:
        scores = scores.masked_fill(delta.abs().amax(-1) > encoding.window, -torch.inf)
    values = torch.einsum("ja,ijae->ije", f, B) + t(encoding.r, M, E)[number]
    alpha = scores.softmax(-1)
    return alpha, torch.einsum("ij,ije->ie", alpha, values)


def features(kinds, ground=(0.0, 0.0)):
    return torch.tensor([ground, *INKS.values()], dtype=torch.float64)[torch.as_tensor(kinds).flatten()]


@pytest.mark.parametrize("name", every_kind())
def test_the_numbers_of_a_page_are_those_of_the_equation(name):
    heads = every_kind()[name]
    heads = heads if isinstance(heads, list) else [heads]
    x = rounded(12, C)
    alpha, output = attend([head.tables(SHAPE) for head in heads], x.numpy(), SHAPE)
    expected = [equation(head, x) for head in heads]
    torch.testing.assert_close(torch.tensor(alpha), sum(a for a, _ in expected) / len(heads))
    torch.testing.assert_close(torch.tensor(output), sum(y for _, y in expected))


def test_translution_and_self_attention_of_the_library_fit_the_form():
    x, w = rounded(1, 12, C), [rounded(M, C, C) for _ in range(3)]
    A = w[0] @ w[1].mT / C**0.5
    _, output = attend([figures.Encoding(A, w[2]).tables(SHAPE, digits=15)], x[0].numpy(), SHAPE)
    torch.testing.assert_close(torch.tensor(output)[None], translution(x, *w, RELATIONS))
    _, output = attend([figures.Encoding(A[0], w[2][0]).tables(SHAPE, digits=15)], x[0].numpy(), SHAPE)
    torch.testing.assert_close(torch.tensor(output)[None], self_attention(x, *(v[0] for v in w)))


def test_shared_matrices_are_stored_once():
    tables = figures.Encoding(rounded(C, C), rounded(C, E)).tables(SHAPE)
    assert tables["M"].shape == (1, C + 1, C + 1) and set(tables["ids"]) == {0}
    assert len(figures.Encoding(rounded(M, C, C), rounded(C, E)).tables(SHAPE)["M"]) == M


@given(st.integers(-2, 2), st.integers(-3, 3))
def test_moving_there_and_back_keeps_what_stayed_on_the_grid(down, right):
    kinds = np.arange(1, 13).reshape(SHAPE)
    there = moved(kinds, (down, right))
    back = moved(there, (-down, -right))
    kept = back > 0
    assert kept.sum() == (3 - abs(down)) * (4 - abs(right)) == (there > 0).sum()
    np.testing.assert_array_equal(back[kept], kinds[kept])


def test_one_layer_of_translution_follows_on_an_empty_ground_and_an_absolute_embedding_does_not():
    kinds = np.zeros(SHAPE, dtype=int)
    kinds[0, 0] = kinds[1, 1] = 1
    encodings = every_kind()

    def verdict(name, ground, depth=1):
        before, after = (features(k, ground).numpy().reshape(*SHAPE, C) for k in (kinds, moved(kinds, (1, 2))))
        return follow([encodings[name].tables(SHAPE)], before, after, (1, 2), depth)["word"].split(",")[0]

    assert verdict("Translution", (0, 0)) == verdict("self-attention", (1, 2), 3) == "✓ follows"
    assert {verdict("Translution", (1, 2)), verdict("Translution", (0, 0), 2)} == {"✗ fails"}
    assert {verdict(name, (0, 0)) for name in ("absolute", "value vectors")} == {"✗ fails"}


READ = """
const panel = c => [...document.querySelectorAll('.tl-card')].map(e => [...e.querySelectorAll(c + ' rect')].map(
  r => r.getAttribute('fill').startsWith('url') ? null : (r.getAttribute('fill') === '#d9772b' ? -1 : 1) *
    r.getAttribute('fill-opacity')));
return {P: panel('.tl-p'), Y: panel('.tl-y'), D: panel('.tl-d'),
  words: [...document.querySelectorAll('.tl-word')].map(e => e.textContent),
  said: document.querySelector('.tl-said').textContent,
  ink: [...document.querySelectorAll('.tl-i rect')].map(r => Number(r.getAttribute('fill-opacity')))};
"""


def expected(encodings, kinds, move, query, ground=(0.0, 0.0), depth=1, channel=0):
    """What the page should show, by torch."""
    shown = {"P": [], "Y": [], "D": [], "words": []}
    for heads in encodings.values():
        outputs = []
        for picture in (kinds, moved(kinds, move)):
            x = features(picture, ground)
            for _ in range(depth):
                parts = [equation(head, x) for head in (heads if isinstance(heads, list) else [heads])]
                alpha, x = sum(a for a, _ in parts) / len(parts), sum(y for _, y in parts)
            outputs.append(x)
        target = torch.full((*SHAPE, E), torch.nan, dtype=torch.float64)
        for i, (y, x) in enumerate(np.ndindex(*SHAPE)):
            if 0 <= y + move[0] < SHAPE[0] and 0 <= x + move[1] < SHAPE[1]:
                target[y + move[0], x + move[1]] = outputs[0][i]
        difference = outputs[1] - target.view(-1, E)
        high = outputs[1][:, channel].abs().max()
        shown["P"].append(alpha[query] / alpha[query].max())
        shown["Y"].append(outputs[1][:, channel] / high)
        shown["D"].append((difference[:, channel] / high).clamp(-1, 1))
        error = difference.abs().nan_to_num().max()
        shown["words"].append(error.item())
    return shown


def compare(browser, expected):
    seen = browser.execute_script(READ)
    for key in "PYD":
        rows = torch.tensor([[torch.nan if v is None else v for v in row] for row in seen[key]], dtype=torch.float64)
        torch.testing.assert_close(rows, torch.stack(expected[key]), rtol=0, atol=1e-9, equal_nan=True)
    for word, error in zip(seen["words"], expected["words"], strict=True):
        assert word.startswith("✓ follows" if error < 1e-9 else "✗ fails")
        assert word.endswith("below 0.0001" if error < 5e-5 else f"{error:.4f}")
    return seen


def choose(browser, name, text):
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("css selector", f"select[name={name}]")).select_by_visible_text(text)


def test_the_page_computes_what_torch_computes(opened):
    from selenium.webdriver.common.keys import Keys

    encodings = every_kind()
    browser = opened(figure(encodings, move=(1, 1), backgrounds={"empty": (0, 0), "grey": (0.5, 0.25)}, layers=(1, 2)))
    kinds = np.zeros(SHAPE, dtype=int)
    kinds[0, 1], kinds[1, 1] = 1, 2
    compare(browser, expected(encodings, kinds, (1, 1), query=6))
    down, right, query = browser.find_elements("css selector", "input[type=range]")
    right.send_keys(Keys.ARROW_RIGHT)  # the query moves along
    compare(browser, expected(encodings, kinds, (1, 2), query=7))
    right.send_keys(Keys.ARROW_UP)
    choose(browser, "background", "grey")
    compare(browser, expected(encodings, kinds, (0, 2), query=3, ground=(0.5, 0.25)))
    choose(browser, "layers", "2")
    query.send_keys(Keys.HOME, Keys.ARROW_DOWN)
    seen = compare(browser, expected(encodings, kinds, (0, 2), query=4, ground=(0.5, 0.25), depth=2))
    assert seen["said"].startswith("follows: self-attention") and "\nfails: " in seen["said"]


def test_drawing_and_choosing(opened):
    from selenium.webdriver import ActionChains

    encodings = {"Translution": every_kind()["Translution"]}
    browser = opened(figure(encodings, move=(0, 1)))
    choose(browser, "object", "point")
    kinds = np.zeros(SHAPE, dtype=int)
    kinds[1, 1] = 1
    cells = browser.find_elements("css selector", ".tl-i rect")
    ActionChains(browser).click(cells[11]).perform()  # (2, 3) after the move, (2, 2) before
    kinds[2, 2] = 1
    seen = compare(browser, expected(encodings, kinds, (0, 1), query=2))
    assert [p for p, v in enumerate(seen["ink"]) if v] == [6, 11]
    ActionChains(browser).click(cells[11]).perform()
    kinds[2, 2] = 2
    compare(browser, expected(encodings, kinds, (0, 1), query=2))
    ActionChains(browser).click_and_hold(cells[0]).move_to_element(cells[4]).release().perform()
    assert [p for p, v in enumerate(browser.execute_script(READ)["ink"]) if v] == [0, 4, 6, 11]
    assert browser.execute_script(READ)["words"] == ["move the object"]  # column 0 has no place before the move
    browser.find_element("css selector", ".tl-clear").click()
    browser.find_element("css selector", ".tl-pen").click()
    assert [p for p, v in enumerate(browser.execute_script(READ)["ink"]) if v] == [2]


def test_the_still_face_is_what_the_script_shows(opened):
    output = figure(move=(1, -1), query=5, channel=1)
    still = output.html.split("<script>")[0]
    seen = opened(output).execute_script(READ)
    assert re.findall(r'class="tl-word"[^>]*>([^<]*)<', still) == seen["words"]
    for key, name in (("P", "tl-p"), ("Y", "tl-y"), ("D", "tl-d")):
        groups = re.findall(rf'<g class="{name}".*?</g>', still)
        drawn = [[float(a) for a in re.findall(r'fill-opacity="([^"]*)"', group)] for group in groups]
        shown = [[1.0 if v is None else abs(v) for v in row] for row in seen[key]]
        np.testing.assert_allclose(drawn, shown, atol=6e-4)
    assert "display:none" in still.split("tl-control")[1] and "http" not in output.html


def test_bytes_depend_on_the_arguments_alone_and_ids_are_unique():
    encodings = every_kind()
    one, two = figure(encodings), figure(encodings)
    assert one.html == two.html and one.alt.endswith("Moved by 1, 1 (rows, columns); query 1, 2.")
    ids = re.findall(r' id="([^"]+)"', one.html)
    assert len(ids) == len(set(ids)) == 2 + len(encodings)
    assert set(re.findall(r"url\(#([^)]+)\)", one.html.split("<script")[0])) <= set(ids)
    names = re.findall(r'<svg [^>]*role="img" aria-label="([^"]+)"', one.html)
    assert len(names) == 1 + len(encodings) and names[0] == one.alt
    data = json.loads(re.search(r'class="tl-data">(.*?)</script>', one.html)[1])
    assert data["objects"]["point"] == [0] * 5 + [1] + [0] * 6


@pytest.mark.parametrize(("change", "message"), [
    ({"alt": " "}, "alt must say"),
    ({"move": (2, 0)}, "move must keep the first object on the grid"),
    ({"query": 12}, "query must be a token from 0 to 11"),
    ({"inks": {"first": (1.0,)}}, "inks must hold vectors of 2 channels"),
    ({"objects": {"all": np.full(SHAPE, 3)}}, r"objects\['all'\] must hold kinds from 0 to 2"),
    ({"encodings": {}}, "needs a grid"),
    ({"channel": 2}, "must map 2 channels to one number of channels above 2"),
    ({"encodings": {"x": figures.Encoding(np.eye(2), np.ones((2, 1)))}, "layers": (1, 2)}, r"\(to 2 where layers"),
    ({"encodings": {"x": figures.Encoding(np.ones((5, 2, 2)), np.eye(2))}}, "A must have the shape"),
    ({"encodings": {"x": figures.Encoding(np.eye(2), np.eye(2), absolute=np.eye(2))}}, "absolute must have the shape"),
])  # fmt: skip
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        figure(**change)

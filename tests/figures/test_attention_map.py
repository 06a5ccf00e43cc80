"""The attention map: what it stores is what it was given, for grids, lines and a CLS token."""

import json
import re

import pytest
import torch
from translution_book.figures import attention_map

from translution_lib import offsets


def stored(output):
    return json.loads(re.search(r'class="tl-data">(.*?)</script>', output.html, re.DOTALL).group(1))


@pytest.mark.parametrize("relations", [offsets((2, 3)), offsets((2, 2), cls=True), offsets(4), offsets(4, causal=True)])
def test_rows_relations_and_cells_are_those_of_the_table(relations):
    weights = torch.rand(relations.n, relations.n).masked_fill(~relations.mask, 0)
    figure = attention_map(weights, relations, alt="weights", start=1)
    data = stored(figure)
    torch.testing.assert_close(torch.tensor(data["rows"]), weights, rtol=0, atol=1e-4)
    assert data["ids"] == relations.index.tolist()
    assert data["high"] == pytest.approx(weights.amax(1).tolist(), abs=1e-4)
    assert len(data["names"]) == relations.count
    for panel in ("tl-l", "tl-r", "tl-m"):
        group = re.search(rf'<g class="{panel}".*?</g>', figure.html).group()
        assert group.count("<rect") == relations.n
    assert "http" not in figure.html


@pytest.mark.parametrize(("weights", "relations", "options"), [
    (torch.rand(4, 5), offsets(4), {}), (torch.rand(8, 8), offsets((2, 2, 2)), {}),
    (torch.rand(4, 4), offsets(4), {"start": 4}), (torch.rand(4, 4), offsets(4), {"alt": " "})])  # fmt: skip
def test_bad_input_is_refused(weights, relations, options):
    with pytest.raises(ValueError, match="weights must|start must|alt must"):
        attention_map(weights, relations, **({"alt": "weights"} | options))

"""Figures that move: their data hold what they claim to show, and the static face is the start."""

import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from translution_book import figures
from translution_book.figures import output as output_module

from translution_lib import offsets, pairs


def data_of(output):
    pattern = r'<script type="application/json" class="tl-data">(.*?)</script>'
    return json.loads(re.search(pattern, output.html, re.S)[1])


def stage_of(output):
    return re.search(r"<svg[^>]*>(.*?)</svg>", output.html, re.S)[1]


def cells(output, name):
    """Fill and opacity of the cells of one panel of the static face."""
    group = re.search(rf'<g class="{name}".*?</g>', stage_of(output), re.S)[0]
    return [(fill, float(a)) for fill, a in re.findall(r'<rect[^>]*fill="([^"]*)" fill-opacity="([^"]*)"', group)]


def draw(k):
    fig, ax = plt.subplots(figsize=(2, 1.5))
    ax.plot([0, 1], [0, k])
    ax.set(ylim=(0, 3), xlabel="x")
    return fig


def moving(**options):
    return figures.frames(draw, [1, 2, 3], label="slope", alt=lambda k: f"slope {k}", format="k = {}".format, **options)


@pytest.mark.parametrize("start", [0, 2])
def test_frames_hold_one_drawing_a_value_and_show_the_start(start):
    output = moving(start=start)
    data = data_of(output)
    drawn = ["".join(data["parts"][k] for k in frame) for frame in data["frames"]]
    assert len(drawn) == 3 and len(set(drawn)) == 3
    assert data["alts"] == ["slope 1", "slope 2", "slope 3"] and data["values"] == ["k = 1", "k = 2", "k = 3"]
    assert stage_of(output) == drawn[start] and output.alt == f"slope {start + 1}"
    assert f'value="{start}"' in output.html and f">k = {start + 1}</output>" in output.html


def test_frames_share_what_does_not_change():
    data = data_of(moving())
    assert sum(len(frame) for frame in data["frames"]) > 2 * len(data["parts"])
    assert len(json.dumps(data)) < 12_000


def test_the_control_waits_for_its_script():
    html = moving().html
    assert re.search(r'<div class="tl-control" style="display:none;', html)
    assert html.count("<input") == html.count('aria-label="slope"') == 1


@pytest.mark.parametrize(("change", "message"), [
    ({"start": 3}, "start must be the index"),
    ({"values": []}, "start must be the index of one of the 0 values"),
    ({"label": " "}, "label must name the slider"),
])  # fmt: skip
def test_frames_refuse_what_they_cannot_show(change, message):
    arguments = {"values": [1, 2, 3], "label": "slope", "alt": "lines", "start": 0} | change
    with pytest.raises(ValueError, match=message):
        figures.frames(draw, arguments.pop("values"), **arguments)


def test_under_a_kernel_the_slider_draws_live(monkeypatch):
    pytest.importorskip("ipywidgets")
    monkeypatch.setattr(output_module, "_has_kernel", lambda: True)
    output = moving(start=1)
    bundle = output._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    control, stage = output.widget().children
    before = stage.value
    assert control.label == "k = 2" and 'aria-label="slope 2"' in before
    control.value = 2
    assert 'aria-label="slope 3"' in stage.value and stage.value != before


def test_linked_maps_store_every_matrix_and_paint_the_start():
    matrices = np.linspace(-4, 4, 6 * 4).reshape(6, 2, 2).round(3)
    output = figures.linked_maps((2, 3), matrices, alt="six matrices", cmap="diverging", start=5, text=2)
    data = data_of(output)
    np.testing.assert_array_equal(np.array(data["rows"]).reshape(6, 2, 2), matrices)
    assert data["high"] == [4.0] * 6 and data["step"] == 3 and data["labels"][5] == "1, 2"
    opacities = [pytest.approx(v / 4, abs=6e-4) for v in matrices[5].ravel()]
    assert cells(output, "tl-r") == [(figures.palette.blue, opacity) for opacity in opacities]
    assert ">4.00</text>" in output.html and len(cells(output, "tl-l")) == 6


def test_linked_maps_take_a_function_and_scale_each_matrix():
    output = figures.linked_maps((2,), lambda i: torch.full((2, 2), float(i + 1)), alt="two matrices", limits="each")
    assert data_of(output)["high"] == [1.0, 2.0]
    assert cells(output, "tl-r") == [(figures.palette.blue, 1.0)] * 4


def test_texts_stand_out_from_their_cells():
    values, matrices = np.array([[0.0, 1.0]]), np.zeros((2, 1, 1))
    output = figures.linked_maps(values, matrices, alt="two cells", left_text=["pale", "full"])
    assert 'fill="currentColor">pale<' in output.html and 'fill="#fff">full<' in output.html


def test_linked_maps_refuse_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="right must hold one matrix for each of the 4 left cells, got 3"):
        figures.linked_maps((2, 2), np.zeros((3, 2, 2)), alt="matrices")
    with pytest.raises(ValueError, match="cmap must be"):
        figures.linked_maps((2, 2), np.zeros((4, 2, 2)), alt="matrices", cmap="rainbow")


def test_pointer_map_shows_the_rows_of_the_weights_and_hatches_masked_keys():
    scores = torch.arange(9.0).reshape(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    output = figures.pointer_map(scores, (3,), alt="causal scores", start=1)
    assert data_of(output)["rows"] == [[0, None, None], [3, 4, None], [6, 7, 8]]
    fills = [fill for fill, _ in cells(output, "tl-r")]
    assert fills[:2] == [figures.palette.blue] * 2 and fills[2].startswith("url(#tl")


def test_pointer_map_gives_cls_a_place_of_its_own():
    output = figures.pointer_map(torch.eye(5), (2, 2), cls=True, alt="identity")
    assert data_of(output)["labels"] == ["query CLS", "query 0, 0", "query 0, 1", "query 1, 0", "query 1, 1"]
    with pytest.raises(ValueError, match=r"weights must have the shape \(5, 5\)"):
        figures.pointer_map(torch.eye(4), (2, 2), cls=True, alt="identity")


@pytest.mark.parametrize("relations", [offsets((2, 2), cls=True), offsets(4, causal=True), offsets((2, 3)), pairs(3)])
def test_relation_map_lights_the_pairs_of_one_relation_and_draws_an_arc_for_each(relations):
    start = relations.count - 1
    output = figures.relation_map(relations, alt="relations", start=start)
    data = data_of(output)
    assert data["ids"] == relations.index.flatten().tolist() and len(data["paths"]) == relations.count
    lit = [opacity == 1.0 for _, opacity in cells(output, "tl-l")]
    assert lit == [k in (start, -1) for k in data["ids"]]
    for k, (path, label) in enumerate(zip(data["paths"], data["labels"], strict=True)):
        queries, keys = relations.pairs_of(k)
        assert path.count("Q") + path.count("a2 2 0 1 0 4") == len(queries)
        assert path.count("a2 2 0 1 0 4") == int((queries == keys).sum())
        assert f": {len(queries)} pair" in label


def test_relation_map_refuses_a_relation_that_does_not_exist():
    with pytest.raises(ValueError, match="start must be a relation from 0 to 6"):
        figures.relation_map(offsets(4), alt="relations", start=7)

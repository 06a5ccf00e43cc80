"""Static plots: the arrays that matplotlib draws are the arguments; colours keep their promises."""

import colorsys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from translution_book import figures
from translution_book.figures import palette

from translution_lib import offsets

WHITE, DARK = 1.0, 0.006  # relative luminance of the two backgrounds


@pytest.fixture(autouse=True)
def style():
    figures.use_style()
    yield
    plt.close("all")


def luminance(colour):
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one, two):
    return (max(one, two) + 0.05) / (min(one, two) + 0.05)


def collections(fig):
    return [c for c in fig.axes[0].collections if isinstance(c, PolyCollection)]


@pytest.mark.parametrize("colour", palette.cycle)
def test_colours_stand_out_from_white_and_from_dark(colour):
    assert contrast(luminance(colour), WHITE) >= 2.9 and contrast(luminance(colour), DARK) >= 2.9


def test_cycle_repeats_and_categories_differ():
    assert palette[0] == palette[6] == palette.blue
    for count in (1, 5, 6, 25, 60):
        assert len(set(palette.categorical(count))) == count


def test_neighbouring_categories_differ_in_lightness():
    lightness = [colorsys.rgb_to_hls(*to_rgb(c))[1] for c in palette.categorical(25)]
    grey = [luminance(c) for c in palette.categorical(25)]
    assert len(lightness) == 25 and min(contrast(a, b) for a, b in zip(grey, grey[1:], strict=False)) > 1.15


def test_zero_is_transparent_and_signs_differ():
    assert palette.sequential(0.0)[3] == 0 and palette.sequential(1.0)[3] == 1
    assert palette.diverging(0.5)[3] < 0.01
    assert palette.diverging(0.0)[:3] == pytest.approx(to_rgb(palette.orange))
    assert palette.diverging(1.0)[:3] == pytest.approx(to_rgb(palette.blue))


def test_heatmap_draws_each_cell_with_its_value():
    matrix = torch.tensor([[0.0, 0.25], [0.5, 1.0]])
    fig = figures.heatmap(matrix, text=True, xlabel="key j", ylabel="query i")
    (mesh,) = collections(fig)
    assert mesh.get_facecolor()[:, 3] == pytest.approx([0.25, 0.5, 1.0], abs=0.01)  # zero is not drawn
    assert [path.vertices[0].tolist() for path in mesh.get_paths()] == [[1, 0], [0, 1], [1, 1]]
    assert [t.get_text() for t in fig.axes[0].texts] == ["0.00", "0.25", "0.50", "1.00"]
    assert fig.axes[0].get_xlabel() == "key j" and fig.axes[0].get_ylim() == (2, 0)


def test_large_heatmap_is_one_image_of_the_same_colours():
    matrix = np.random.default_rng(0).random((30, 20))
    (picture,) = figures.heatmap(matrix, limits=(0, 1)).axes[0].images
    np.testing.assert_allclose(picture.get_array()[..., 3], palette.sequential(matrix)[..., 3])


def test_relation_table_colours_by_id_and_hatches_masked_pairs():
    relations = offsets(4, causal=True)
    mesh, masked = collections(figures.relation_table(relations, text=True))
    colours = palette.categorical(relations.count)
    expected = [to_rgb(colours[k]) for k in relations.index.flatten().tolist() if k >= 0]
    np.testing.assert_allclose(mesh.get_facecolor()[:, :3], expected)
    assert masked.get_hatch() and len(masked.get_paths()) == 6


def test_token_grid_and_kernel_taps_place_values():
    fig = figures.token_grid(torch.arange(6.0), (2, 3), text="g")
    assert [t.get_text() for t in fig.axes[0].texts] == list("012345")
    fig = figures.kernel_taps(torch.tensor([1.0, -2.0, 0.5]))
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["−1", "0", "1"]
    assert [t.get_text() for t in fig.axes[0].texts] == ["1.00", "−2.00", "0.50"]


def test_bars_and_loglog_hold_their_numbers():
    fig = figures.bars({"a": 3, "b": 7.5}, spread={"b": 0.5}, xlabel="million")
    assert [bar.get_width() for bar in fig.axes[0].patches] == [3, 7.5]
    fig = figures.loglog([1, 10], {"a": [1, 100], "b": torch.tensor([2.0, 3.0])}, xlabel="n")
    assert [line.get_ydata().tolist() for line in fig.axes[0].lines] == [[1, 100], [2, 3]]
    assert [t.get_text() for t in fig.axes[0].texts] == ["a", "b"]


def test_plots_draw_into_given_axes():
    fig, (one, two) = plt.subplots(1, 2)
    assert figures.heatmap(np.eye(2), ax=one, title="left") is fig
    assert figures.bars({"a": 1}, ax=two) is fig
    assert one.get_title() == "left" and len(two.patches) == 1


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"matrix must have rows and columns, got the shape \(3,\)"):
        figures.heatmap(np.zeros(3))
    with pytest.raises(ValueError, match="cmap must be"):
        figures.heatmap(np.zeros((2, 2)), cmap="rainbow")

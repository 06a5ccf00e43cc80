"""The estimator: the page's random numbers, estimates and exact spreads are the library's."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_book import figures
from translution_book.figures.estimator import deviations, estimates, gaussians, uniforms

from translution_lib.functional import random_features

norms = st.integers(0, 20).map(lambda k: k / 10)


def vectors(x, y, angle):
    """Two row vectors of the given norms and angle."""
    turn = torch.deg2rad(torch.tensor(float(angle), dtype=torch.float64))
    return torch.tensor([x, 0.0], dtype=torch.float64), y * torch.stack([turn.cos(), turn.sin()])


@given(norms, norms, st.sampled_from(range(0, 181, 5)), st.sampled_from([1, 8, 64]))
def test_the_exact_spread_is_the_library_s(x, y, angle, m):
    a, b = vectors(x, y, angle)
    exact = float((a @ b).exp())
    for k, variance in enumerate([random_features.variance_trigonometric, random_features.variance_positive]):
        expected = float(variance(a, b, m)) ** 0.5 / exact
        assert deviations((m, m), x, y, angle)[k] == pytest.approx(expected, rel=1e-6, abs=2e-7)


@given(norms.filter(bool), norms.filter(bool), st.sampled_from(range(5, 180, 5)), st.sampled_from([1, 5, 32]))
def test_estimates_are_inner_products_of_features(x, y, angle, m):
    """A draw whose component along x ∓ y is the page's Gaussian number gives the page's estimate."""
    a, b = vectors(x, y, angle)
    z, both = torch.tensor(gaussians(0, m)[7]), estimates((m, m), x, y, angle)
    for k, (way, features) in enumerate([(a - b, random_features.trigonometric), (a + b, random_features.positive)]):
        omega = z[:, k, None] * way / way.norm()
        ratio = (features(a, omega) * features(b, omega)).sum() / (a @ b).exp()
        assert both[k][7] == pytest.approx(float(ratio), rel=1e-9, abs=1e-9)


def test_the_fixed_sequence_is_uniform_and_its_gaussians_are_gaussian():
    """Fixed numbers: the bounds are five standard errors of fair ones."""
    u, n = uniforms(0, 2**18), 2**18
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 5 / np.sqrt(12 * n)
    counts = np.bincount((u * 64).astype(int), minlength=64)
    assert np.abs(counts - n / 64).max() < 5 * np.sqrt(n / 64)
    z = gaussians(3, 256).reshape(-1, 2)
    np.testing.assert_allclose(np.cov(z.T), np.eye(2), atol=5 * np.sqrt(2 / len(z)))
    assert abs((z[:, 0] ** 4).mean() - 3) < 5 * np.sqrt(96 / len(z))


def test_fewer_draws_are_the_first_of_more_and_seeds_share_none():
    np.testing.assert_array_equal(gaussians(0, 8)[:, :3], gaussians(0, 3))
    assert not np.isin(gaussians(1, 4), gaussians(0, 1024)).any()


READ = """
return {values: [...document.querySelectorAll('.tl-value')].map(e => e.textContent),
  off: [...document.querySelectorAll('text[class]')].map(e => e.textContent),
  paths: Object.fromEntries([...document.querySelectorAll('path[class]')].map(e =>
    [e.getAttribute('class'), e.getAttribute('d')])),
  dots: [...document.querySelectorAll('circle')].map(e => [e.getAttribute('cx'), e.getAttribute('cy')].join()),
  label: document.querySelector('svg').getAttribute('aria-label')};
"""


def numbers(text):
    return [float(v) for v in re.findall(r"-?[\d.]+", text)]


def same(seen, output):
    """Whether the page shows the still face of `output`, but for a last digit."""
    still = output.html.split("<script")[0]
    assert seen["values"] == re.findall(r'class="tl-value"[^>]*>([^<]*)<', still)
    assert seen["off"] == re.findall(r'<text class="tl-off\d"[^>]*>([^<]*)<', still)
    assert seen["label"] == output.alt
    drawn = dict(re.findall(r'<path class="(tl-\w+)" d="([^"]*)"', still))
    assert set(drawn) == set(seen["paths"]) and len(drawn) == 7
    for name, d in drawn.items():
        np.testing.assert_allclose(numbers(d), numbers(seen["paths"][name]), atol=0.11, err_msg=name)
    dots = re.findall(r'cx="([^"]*)" cy="([^"]*)"', still)
    for dot, shown in zip(dots, seen["dots"], strict=True):
        np.testing.assert_allclose(numbers(" ".join(dot)), numbers(shown), atol=0.11)


def test_the_page_computes_what_numpy_computes(opened):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    made = lambda **options: figures.estimator(alt="Estimates.", **options)  # noqa: E731
    browser = opened(made())
    same(browser.execute_script(READ), made())
    count, x, y, angle = browser.find_elements("css selector", "input[type=range]")
    x.send_keys(*[Keys.ARROW_RIGHT] * 4)
    y.send_keys(Keys.END)
    angle.send_keys(*[Keys.ARROW_RIGHT] * 18)
    count.send_keys(*[Keys.ARROW_LEFT] * 3)
    same(browser.execute_script(READ), made(m=4, norms=(1.4, 2.0), angle=150))
    Select(browser.find_element("css selector", "select")).select_by_visible_text("features")
    count.send_keys(Keys.END)
    angle.send_keys(Keys.HOME)
    same(browser.execute_script(READ), made(m=512, norms=(1.4, 2.0), angle=0, equal="features"))
    before = browser.execute_script(READ)["values"]
    browser.find_element("css selector", ".tl-again").click()
    after = browser.execute_script(READ)["values"]
    assert after[:4] != before[:4] and after[4:6] == before[4:6]
    expected = estimates((512, 1024), 1.4, 2.0, 0, seed=1)
    assert [float(v) for v in after[:2]] == pytest.approx([ratios.mean() for ratios in expected], abs=5.1e-4)


def test_a_histogram_holds_every_estimate():
    output = figures.estimator(alt="Estimates.", m=2, norms=(1.5, 1.5), angle=90)
    still = output.html.split("<script")[0]
    for k, ratios in enumerate(estimates((2, 2), 1.5, 1.5, 90)):
        bars = numbers(re.search(rf'class="tl-bars{k}" d="([^"]*)"', still)[1])
        heights = np.array(bars).reshape(-1, 5)[:, 1] - np.array(bars).reshape(-1, 5)[:, 2]
        inside = np.histogram(ratios, bins=48, range=(-1, 3))[0]
        np.testing.assert_allclose(heights, 84 * inside[inside > 0] / inside.max(), atol=0.11)
        low, high = (ratios < -1).sum(), (ratios >= 3).sum()
        assert f"off the axis: {low} left, {high} right" in still


def test_bytes_depend_on_the_arguments_alone_and_every_drawing_is_named():
    one = figures.estimator(alt="Estimates.", caption="c", norms=[1, 0.7])
    assert one.html == figures.estimator(alt="Estimates.", caption="c", norms=[1, 0.7]).html
    ids = re.findall(r' id="([^"]+)"', one.html)
    assert len(ids) == len(set(ids)) and "http" not in one.html
    assert len(re.findall(r'<svg role="img" aria-label="[^"]+"', one.html)) == 2
    assert "norms 1.0 and 0.7, angle 60°" in one.alt and one.alt.startswith("Estimates. m = 32")


@pytest.mark.parametrize("change", [{"m": 3}, {"m": 1024}, {"norms": (2.1, 1)}, {"angle": 7}, {"equal": "time"}])
def test_a_start_that_no_slider_reaches_is_refused(change):
    with pytest.raises(ValueError, match="m must be a power of two up to 512, norms multiples"):
        figures.estimator(alt="Estimates.", **change)
    with pytest.raises(ValueError, match="alt must say"):
        figures.estimator(alt=" ")

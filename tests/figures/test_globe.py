"""The globe: the page's turned angle, area and angles are those of the library's globe_loop."""

import re

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from translution_book import figures, geometry
from translution_book.figures import globe_drawing, globe_loop
from translution_book.figures.globe import _loop, _rows
from translution_book.figures.script import FOLDER

places = st.tuples(st.integers(0, 180), st.integers(-180, 180))
OCTANT = {"N": (0, 0), "A": (90, 0), "B": (90, 90)}


def points(loop):
    return torch.tensor(np.array([globe_loop.unit(place) for place in loop]))


def apart(loop):
    cosines = points(loop) @ points(loop).T
    return cosines.triu(1).abs().max() < np.cos(np.radians(3))


def equal_angles(a, b, turn=2 * np.pi, atol=1e-9):
    difference = torch.as_tensor(a, dtype=torch.float64) - torch.as_tensor(b, dtype=torch.float64)
    torch.testing.assert_close(difference - turn * torch.round(difference / turn), torch.zeros_like(difference),
                               rtol=0, atol=atol)  # fmt: skip


@given(st.lists(places, min_size=3, max_size=5), st.integers(-180, 180))
def test_angle_area_and_corners_belong_together(loop, bearing):
    assume(apart(loop))
    vectors, area = globe_loop.carried(loop, bearing), globe_loop.area(loop)
    equal_angles(globe_loop.turn(loop, vectors), float(geometry.holonomy(points(loop))))
    assert abs(globe_loop.turn(loop, vectors) - area) < 1e-9
    side = 1 if area >= 0 else -1
    equal_angles(side * (sum(globe_loop.angles(loop)) - np.pi * (len(loop) - 2)), area, atol=1e-6)


COMPUTE = """
return loops.map(loop => {
  const parts = {edge: 20, circle: 60, fine: 30, bearing: 20}, stations = stationsOf(loop, parts);
  const vectors = carriedAround(loop, stations, parts), area = areaOf(loop);
  return {stations, vectors, area, turn: turnedBy(loop, vectors, area),
    angles: loop.length < 2 ? [] : innerAngles(loop, area)};
});
"""


def test_the_page_computes_what_the_geometry_computes(session):
    rng = np.random.default_rng(0)
    drawn = [[[int(rng.integers(181)), int(rng.integers(-180, 181))] for _ in range(3 + k % 3)] for k in range(90)]
    loops = [loop for loop in drawn if apart(loop)] + [[[θ, 20]] for θ in (5, 60, 175)]
    assert len(loops) > 60
    code = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("start.js", "sphere.js"))
    session.get("about:blank")
    computed = session.execute_script(f"const loops = arguments[0];\n{code}{COMPUTE}", loops)
    for loop, page in zip(loops, computed, strict=True):
        vectors = globe_loop.carried(loop, 20)
        np.testing.assert_allclose(page["stations"], globe_loop.stations(loop), atol=1e-10)
        np.testing.assert_allclose(page["vectors"], vectors, atol=1e-9)
        assert page["area"] == pytest.approx(globe_loop.area(loop), abs=1e-9), loop
        assert page["turn"] == pytest.approx(globe_loop.turn(loop, vectors), abs=1e-9), loop
        if len(loop) > 1:
            equal_angles(page["angles"], globe_loop.angles(loop), atol=1e-6)


@given(st.lists(places, min_size=3, max_size=4), st.integers(-180, 180))
def test_a_carried_vector_stays_tangent_and_keeps_its_length(loop, bearing):
    assume(apart(loop))
    stations, vectors = globe_loop.stations(loop), globe_loop.carried(loop, bearing)
    assert len(stations) == len(vectors) == globe_loop.EDGE * len(loop) + 1
    np.testing.assert_allclose(np.sum(stations**2, axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(np.sum(vectors**2, axis=1), 1, atol=1e-10)
    np.testing.assert_allclose(np.sum(stations * vectors, axis=1), 0, atol=1e-10)
    ahead = geometry.logarithm(*points(loop)[:2])
    equal_angles(geometry.turn(points(loop)[0], ahead, torch.tensor(vectors[0])), np.radians(bearing))


@pytest.mark.parametrize("colatitude", [5, 60, 90, 135, 175])
def test_a_circle_turns_by_its_cap(colatitude):
    loop = [[colatitude, 20]]
    cap = 2 * np.pi * (1 - np.cos(np.radians(colatitude)))
    assert globe_loop.area(loop) == pytest.approx(cap)
    assert globe_loop.turn(loop, globe_loop.carried(loop, 0)) == pytest.approx(cap, abs=2e-5)
    south, _, _ = globe_loop.frame(loop[0])
    np.testing.assert_allclose(globe_loop.carried(loop, 0)[0], south)


def test_the_octant_is_the_example_of_the_chapter():
    output = figures.globe(alt="A vector.")
    assert output.alt == "A vector. Octant triangle: turned by 90.0°, area 1.5708 = 90.0°."
    assert re.findall(r'class="tl-value"[^>]*>([^<]*)<', output.html) == [
        "90.0°", "1.5708 = 90.0°", "90.0°, 90.0°, 90.0°", "90.0°"]  # fmt: skip


@given(st.lists(places, min_size=3, max_size=3))
def test_facets_cover_the_area_and_front_and_back_make_the_whole(loop):
    assume(apart(loop))
    flat = sum(np.cross(b - a, c - a) / 2 for a, b, c in globe_drawing.facets(loop))
    a, b, c = (globe_loop.unit(place) for place in loop)  # the vector area depends on the boundary alone
    fine = [(p, q) for x, y in ((a, b), (b, c), (c, a)) for p, q in _chords(x, y)]
    np.testing.assert_allclose(flat, sum(np.cross(p, q) / 2 for p, q in fine), atol=1e-9)
    halves = globe_drawing.split(globe_loop.stations(loop), lambda p: f"{p[0]:.9f} {p[1]:.9f}")
    assert sum(map(_length, halves)) == pytest.approx(_flat_length(globe_loop.stations(loop)), rel=2e-2)


def _chords(x, y):
    stops = [(globe_drawing.MESH - i) * x + i * y for i in range(globe_drawing.MESH + 1)]
    stops = [p / np.linalg.norm(p) for p in stops]
    return zip(stops, stops[1:], strict=False)


def _length(d):
    return sum(_flat_length(np.array([list(map(float, p.split())) for p in piece.replace("L", " L").split("L")[1:]
                                      for p in _pairs(piece)])) for piece in d.split("M")[1:])  # fmt: skip


def _pairs(piece):
    numbers = piece.replace("L", " ").split()
    return [" ".join(numbers[k : k + 2]) for k in range(0, len(numbers), 2)]


def _flat_length(curve):
    return float(np.hypot(*np.diff(curve[:, :2], axis=0).T).sum())


READ = """
const paths = {};
document.querySelectorAll('svg path[class]').forEach(p => { paths[p.getAttribute('class')] = p.getAttribute('d') });
return {values: [...document.querySelectorAll('.tl-value')].map(e => e.textContent), paths,
  label: document.querySelector('svg').getAttribute('aria-label'),
  corners: [...document.querySelectorAll('.tl-corner')].map(e => e.getAttribute('transform')),
  sliders: [...document.querySelectorAll('input')].map(e => Number(e.value))};
"""


def numbers(text):
    return np.array([float(v) for v in re.findall(r"-?[\d.]+", text)])


def same_drawing(seen, output):
    """Whether the page shows the still face of `output`, but for a last digit."""
    still = output.html.split("<script")[0]
    drawn = {name: d for name, d in re.findall(r'<path class="(tl-\w+)" d="([^"]*)"', still)}
    assert set(drawn) == set(seen["paths"]) and len(drawn) == 10
    for name, d in drawn.items():
        if name != "tl-fill":  # a facet on the limb may be in or out by its last bit
            assert re.sub(r"[-\d. ]", "", d) == re.sub(r"[-\d. ]", "", seen["paths"][name]), name
            np.testing.assert_allclose(numbers(d), numbers(seen["paths"][name]), atol=0.11, err_msg=name)
    assert seen["label"] == output.alt
    assert seen["values"] == re.findall(r'class="tl-value"[^>]*>([^<]*)<', still)


def test_the_still_face_is_what_the_script_shows(opened):
    output = figures.globe({"square": {k: (60, 90 * n) for n, k in enumerate("ABCD")}}, alt="Four corners.", step=33,
                           bearing=20, view=(37, -128))  # fmt: skip
    seen = opened(output).execute_script(READ)
    same_drawing(seen, output)
    assert seen["sliders"] == [33, 60, 270, 52, 143]
    assert seen["values"][0] == seen["values"][3] != "90.0°"


def test_the_still_face_of_a_whole_loop_is_what_the_script_shows(opened):
    tilted = {"A": (40, 10), "B": (95, 60), "C": (130, -20)}
    output = figures.globe({"triangle": tilted}, alt="Three corners.", bearing=50, view=(70, 25))
    same_drawing(opened(output).execute_script(READ), output)


def test_the_page_carries_turns_and_chooses(opened):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    browser = opened(figures.globe(alt="Loops.", view=(40, 10)))
    step, colatitude, longitude, turn, tilt = browser.find_elements("css selector", "input[type=range]")
    step.send_keys(*[Keys.ARROW_LEFT] * 25)
    colatitude.send_keys(*[Keys.ARROW_LEFT] * 10)
    longitude.send_keys(*[Keys.ARROW_LEFT] * 30)
    turn.send_keys(Keys.HOME)
    tilt.send_keys(*[Keys.ARROW_LEFT] * 5)
    moved = {"octant triangle": OCTANT | {"A": (80, -30)}}
    same_drawing(browser.execute_script(READ), figures.globe(moved, alt="Loops.", view=(45, -180), step=35))
    Select(browser.find_element("css selector", "select[name=loop]")).select_by_visible_text("circle of latitude")
    longitude.send_keys(*[Keys.ARROW_RIGHT] * 2)
    colatitude.send_keys(Keys.END)
    seen = browser.execute_script(READ)
    assert len(seen["corners"]) == 1 and seen["sliders"][:3] == [60, 175, 182]
    loop = [[175, 2]]
    assert seen["values"][:2] == [value for _, value in _rows(loop, globe_loop.carried(loop, 0))[:2]]


def test_a_corner_stops_short_of_an_antipode(opened):
    from selenium.webdriver.common.keys import Keys

    browser = opened(figures.globe(alt="A triangle."))
    browser.find_elements("css selector", "input[type=range]")[1].send_keys(Keys.END)
    seen = browser.execute_script(READ)
    assert 170 <= seen["sliders"][1] <= 177 and "NaN" not in str(seen)


def test_dragging_turns_the_globe_and_moves_a_corner(opened):
    from selenium.webdriver import ActionChains

    browser = opened(figures.globe(alt="A triangle."))
    corner = browser.find_elements("css selector", ".tl-corner circle")[3]  # A's dot
    before = browser.execute_script(READ)
    ActionChains(browser).click_and_hold(corner).move_by_offset(25, 30).release().perform()
    seen = browser.execute_script(READ)
    assert seen["sliders"][3:] == before["sliders"][3:] and seen["sliders"][1:3] != before["sliders"][1:3]
    scale = browser.execute_script("return document.querySelector('svg').getBoundingClientRect().width / 344")
    went = (numbers(seen["corners"][1]) - numbers(before["corners"][1])) * scale
    np.testing.assert_allclose(went, [25, 30], atol=3)
    places = [[0, 0], [seen["sliders"][1], seen["sliders"][2] - 180], [90, 90]]
    assert seen["values"] == [value for _, value in _rows(places, globe_loop.carried(places, 0))]
    stage = browser.find_element("css selector", ".tl-globe")
    drag = ActionChains(browser).move_to_element_with_offset(stage, 0, 90).click_and_hold()
    drag.move_by_offset(-40, 20).release().perform()
    turned = browser.execute_script(READ)
    assert turned["sliders"][1:3] == seen["sliders"][1:3] and turned["values"] == seen["values"]
    degrees = np.degrees(np.array([40, 20]) / scale / 148)
    np.testing.assert_allclose(np.subtract(turned["sliders"][3:], seen["sliders"][3:]), degrees, atol=1.1)


def test_a_finger_moves_a_corner_and_turns_the_globe_sideways(opened):
    browser = opened(figures.globe(alt="A triangle."))
    command = browser.execute_cdp_cmd
    browser.execute_script("document.body.style.minHeight = '3000px'")
    command("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 1})

    def drag(selector, right, down):
        place = "const r = arguments[0].getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]"
        x, y = browser.execute_script(place, browser.find_elements("css selector", selector)[-1])
        command("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
        for k in range(1, 9):
            point = {"x": x + right * k / 8, "y": y + down * k / 8}
            command("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
        command("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        return browser.execute_script(READ)["sliders"], browser.execute_script("return scrollY")

    try:
        turned, _ = drag(".tl-globe", 60, 0)
        assert turned[:3] == [60, 90, 180] and 190 < turned[3] < 210
        moved, scrolled = drag(".tl-corner:last-of-type circle", 0, -60)
        assert moved[3:] == turned[3:] and moved[1] < 75 and scrolled == 0
    finally:
        command("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_the_button_carries_the_vector_around(opened):
    from selenium.webdriver.support.ui import WebDriverWait

    browser = opened(figures.globe(alt="A triangle."))
    browser.find_element("css selector", ".tl-play").click()
    at = WebDriverWait(browser, 20, 0.02).until(lambda b: b.execute_script(READ)["sliders"][0] % 60)
    WebDriverWait(browser, 20, 0.02).until(lambda b: b.execute_script(READ)["sliders"][0] > at)


def test_readers_who_want_no_motion_get_a_quarter_with_every_press(opened):
    browser = opened(figures.globe(alt="A triangle.", step=0))
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    button, seen = browser.find_element("css selector", ".tl-play"), []
    for _ in range(5):
        button.click()
        seen.append(browser.execute_script(READ)["sliders"][0])
        browser.execute_async_script("setTimeout(arguments[0], 120)")
        assert browser.execute_script(READ)["sliders"][0] == seen[-1], "it moves by itself"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen == [15, 30, 45, 60, 0]


@pytest.mark.parametrize(("change", "message"), [
    ({"alt": ""}, "alt must say"),
    ({"loops": {}}, "loops must hold at least one"),
    ({"loops": {"flat": {"A": (0, 0), "B": (90, 0)}}}, "must have three corners or more"),
    ({"loops": {"x": OCTANT | {"A": (178, 0)}}}, "none within 3 degrees"),
    ({"loops": {"cap": 3}}, "must be a colatitude from 5 to 175 degrees, got 3"),
    ({"step": 61}, "step must lie between 0 and 60"),
])  # fmt: skip
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        figures.globe(**({"alt": "A globe."} | change))


def test_longitudes_are_taken_to_their_nearest():
    assert _loop("x", {"A": (90, 270), "B": (90, 180), "C": (20, -190)})[1] == [[90, -90], [90, 180], [20, 170]]

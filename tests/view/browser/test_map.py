import json

import pytest
import torch

from qkv.view.colors import RAMPS, color
from qkv.view.scene import Layer, Scene

_PIXELS = """places => {
  const canvas = document.querySelector('.field-of-view canvas');
  const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const at = places.map(([x, y]) => 4 * (Math.floor(x) + Math.floor(y) * canvas.width));
  return at.map(place => [...all.slice(place, place + 4)]);
}"""


def drawn(page, state="exact"):
    """Wait for the map, and return where it is: left, top, x, y, scale, level, low, high."""
    page.wait_for_selector(f".field-of-view canvas[data-state={state}]")
    page.wait_for_timeout(100)
    data = json.loads(page.evaluate("JSON.stringify(document.querySelector('.field-of-view canvas').dataset)"))
    return {name: float(value) for name, value in data.items() if name != "state"}


def pixels(page, at, cells):
    """The colors at the centers of cells (row, column) of the level shown."""
    side = at["scale"] * 2 ** at["level"]
    places = [
        (at["left"] + (c + 0.5) * side - at["x"] * at["scale"], at["top"] + (r + 0.5) * side - at["y"] * at["scale"])
        for r, c in cells
    ]
    return page.evaluate(_PIXELS, places)


def close(shown, expected):
    return all(abs(one - other) <= 3 for one, other in zip(shown, (*expected, 255), strict=True))


def test_the_map_has_the_color_of_each_weight(opened, served, scene):
    page = opened(served(scene) + "#view=map&layer=1&head=1")
    weights = scene.layers[1].map().dense()[1]
    at = drawn(page)
    assert at["level"] == 0
    assert at["high"] == pytest.approx(float(weights.max()))
    cells = [(r, c) for r in range(12) for c in range(12)]
    for (r, c), shown in zip(cells, pixels(page, at, cells), strict=True):
        assert close(shown, color(float(weights[r, c]) / at["high"]))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["mean", "max"])
def test_cells_seen_from_afar_are_means_or_maxima(opened, served, long_scene, how):
    page = opened(served(long_scene) + f"#view=map&how={how}&colors=viridis")
    at = drawn(page)
    level = int(at["level"])
    assert level >= 1
    size = 2**level
    weights = long_scene.layers[0].map().dense()[0].double()
    cells = [(r, c) for r in range(0, 600 // size, 7) for c in range(0, 600 // size, 7)]
    blocks = [weights[r * size : (r + 1) * size, c * size : (c + 1) * size] for r, c in cells]
    for block, shown in zip(blocks, pixels(page, at, cells), strict=True):
        value = float(block.mean() if how == "mean" else block.max())
        assert close(shown, color(min(1.0, value / at["high"]), RAMPS["viridis"]))


@pytest.mark.slow
def test_the_logarithm_spans_five_decades(opened, served, long_scene):
    page = opened(served(long_scene) + "#view=map&log=1&at=10_20_12")
    at = drawn(page)
    weights = long_scene.layers[0].map().dense()[0].double()
    cells = [(r, c) for r in range(22, 44, 3) for c in range(12, 60, 3)]
    for (r, c), shown in zip(cells, pixels(page, at, cells), strict=True):
        fraction = 1 + float((weights[r, c] / at["high"]).log10()) / 5
        assert close(shown, color(min(1.0, max(0.0, fraction))))


@pytest.mark.slow
def test_wheel_drag_and_buttons_zoom_and_pan(opened, served, long_scene):
    page = opened(served(long_scene) + "#view=map")
    whole = drawn(page)
    box = page.locator(".field-of-view canvas").bounding_box()
    # Whole pixels: a browser rounds the places of its events, and a cell is less than one pixel here.
    middle = round(box["x"] + whole["left"] + 100), round(box["y"] + whole["top"] + 100)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -1500)
    page.wait_for_timeout(300)
    near = drawn(page)
    assert near["scale"] > 10 * whole["scale"]
    first = (middle[0] - box["x"] - whole["left"]) / whole["scale"]
    under = [first, (middle[0] - box["x"] - near["left"]) / near["scale"] + near["x"]]
    assert under[0] == pytest.approx(under[1], abs=0.05)
    page.mouse.down()
    page.mouse.move(middle[0] - 60, middle[1] - 40, steps=5)
    page.mouse.up()
    page.wait_for_timeout(100)
    moved = drawn(page)
    assert (moved["x"] - near["x"]) * near["scale"] == pytest.approx(60, abs=1)
    assert (moved["y"] - near["y"]) * near["scale"] == pytest.approx(40, abs=1)
    page.get_by_role("button", name="Show all").click()
    page.wait_for_timeout(100)
    assert drawn(page)["scale"] == pytest.approx(whole["scale"])


@pytest.mark.slow
def test_two_fingers_zoom(opened, served, long_scene):
    page = opened(served(long_scene) + "#view=map", has_touch=True, viewport={"width": 390, "height": 844})
    before = drawn(page)
    box = page.locator(".field-of-view canvas").bounding_box()
    finger = page.context.new_cdp_session(page)
    x, y = box["x"] + 180, box["y"] + 180
    for kind, gap in (("touchStart", 20), ("touchMove", 40), ("touchMove", 80), ("touchEnd", 0)):
        points = [{"x": x - gap, "y": y}, {"x": x + gap, "y": y}] if gap else []
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_timeout(200)
    assert drawn(page)["scale"] == pytest.approx(4 * before["scale"], rel=0.05)


@pytest.mark.slow
def test_the_keyboard_walks_reads_and_keeps_cells(opened, served, scene):
    page = opened(served(scene) + "#view=map&layer=0&head=0")
    drawn(page)
    weights = scene.layers[0].map().dense()[0]
    page.locator(".field-of-view canvas").focus()
    for key, row, column in [("ArrowDown", 0, 0), ("ArrowDown", 1, 0), ("ArrowRight", 1, 1), ("ArrowUp", 0, 1)]:
        page.keyboard.press(key)
        words = scene.sequences["text"]
        said = page.locator("#live").inner_text()
        assert said.startswith(f"Query {row}, {words[row]}; key {column}, {words[column]}: ")
        assert float(said.rsplit(" ", 1)[1]) == pytest.approx(float(weights[row, column]), abs=6e-4)
    page.keyboard.press("Enter")
    page.wait_for_selector(".equation .result")
    assert "query=0&key=1" in page.evaluate("location.hash")
    page.keyboard.press("+")
    page.keyboard.press("Escape")
    assert page.locator(".equation").is_hidden()


@pytest.mark.slow
def test_a_click_fills_the_equation_of_that_cell(opened, served, scene):
    page = opened(served(scene) + "#view=map&layer=0&head=0")
    at = drawn(page)
    box = page.locator(".field-of-view canvas").bounding_box()
    page.mouse.click(
        box["x"] + at["left"] + (3.5 - at["x"]) * at["scale"], box["y"] + at["top"] + (7.5 - at["y"]) * at["scale"]
    )
    weight = float(page.locator(".equation .result output").inner_text())
    assert weight == pytest.approx(float(scene.layers[0].map()[0, 7, 3]), abs=6e-4)
    assert page.locator(".equation dt").count() >= 3


@pytest.mark.slow
def test_the_address_restores_what_was_seen(opened, served, long_scene):
    page = opened(served(long_scene) + "#view=map")
    drawn(page)
    page.locator(".field-of-view canvas").focus()
    for key in ("+", "+", "+", "+", "ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("button", name="viridis").click()
    page.wait_for_selector(".equation .result")
    page.wait_for_timeout(500)
    before = drawn(page)
    other = opened(page.url)
    other.wait_for_selector(".equation .result")
    after = drawn(other)
    assert all(after[name] == pytest.approx(before[name], rel=1e-5) for name in ("x", "y", "scale", "level", "high"))
    assert other.locator(".equation").inner_text() == page.locator(".equation").inner_text()
    assert other.locator("button[data-value=viridis]").get_attribute("aria-pressed") == "true"


@pytest.mark.slow
def test_what_is_sampled_is_called_so_until_it_is_exact(opened, served):
    size = 12_000
    query, key, value = torch.randn(3, 1, size, 4, generator=torch.Generator().manual_seed(1))
    words = tuple(map(str, range(size)))
    page = opened(served(Scene("long", {"text": words}, (Layer("a", "self", "text", "text", query, key, value),))))
    page.wait_for_selector(".field-of-view canvas[data-state=sampled]")
    assert page.locator(".badge").inner_text() == "sampled"
    page.get_by_role("button", name="Stop computing").click()
    page.get_by_role("button", name="Resume computing").click()
    drawn(page)
    assert page.locator(".progress").is_hidden()

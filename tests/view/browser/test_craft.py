"""What a careful eye finds in a real browser: names cut in the wrong place, minus signs, words for fingers."""

import pytest
import torch

import qkv
from qkv.view.scene import Layer, Scene

_PHONE = {"width": 390, "height": 844}
_SCORES = [
    qkv.scores.ScaledDot(),
    qkv.scores.SquaredDistance(bandwidth=2.0),
    qkv.scores.Epanechnikov(bandwidth=9.0),
]
_CUT = """
() => [...document.querySelectorAll('.panel select')].flatMap((field) => {
  const pen = document.createElement('canvas').getContext('2d');
  const style = getComputedStyle(field);
  pen.font = style.font;
  const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 18;
  return [...field.options].map(({ text }) => [text, pen.measureText(text).width, room]);
}).filter(([, needed, room]) => needed > room)
"""
_BROKEN = """
() => [...document.querySelectorAll('.column b')].flatMap((name) => {
  const lines = new Map();
  const pieces = [...name.childNodes].filter((node) => node.nodeType === 3);
  for (const node of pieces) for (let at = 0; at < node.length; at++) {
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const top = Math.round(range.getBoundingClientRect().top);
    lines.set(top, (lines.get(top) ?? '') + node.data[at]);
  }
  return [...lines.values()].slice(0, -1);
})
"""

_WATCH = """
() => {
  const pen = CanvasRenderingContext2D.prototype, draw = pen.fillText;
  window.written = [];
  pen.fillText = function (text, x, y) {
    const { b, e, f } = this.getTransform();
    const room = b ? f : this.textAlign === 'right' ? e + x * devicePixelRatio : Infinity;
    window.written.push([text, this.measureText(text).width * devicePixelRatio <= room]);
    return draw.call(this, text, x, y);
  };
}
"""
_BEGINNINGS = """
() => [...document.querySelectorAll('.rows bdi, .under')].map((name) => {
  const range = document.createRange();
  range.setStart(name.firstChild, 0);
  range.setEnd(name.firstChild, 1);
  const box = name.getBoundingClientRect();
  return [range.getBoundingClientRect().left >= box.left - 0.5, getComputedStyle(name).textOverflow];
})
"""
_LONG_WORDS = (
    "Donaudampfschifffahrtsgesellschaft",
    "WWWWWWWWWWWWW",
    "Kraftfahrzeug",
    "a",
    "</script><script>pwned=1</script>",
)


@pytest.fixture(scope="module")
def long_words():
    query, key, value = torch.randn(3, 1, len(_LONG_WORDS), 8, generator=torch.Generator().manual_seed(6))
    return Scene("long words", {"text": _LONG_WORDS}, (Layer("only", "self", "text", "text", query, key, value),))


@pytest.fixture(scope="module")
def mechanisms():
    """One layer for each score, with the long names of a translator's layers."""
    generator = torch.Generator().manual_seed(3)
    words = ("a", "dog", "runs", "over", "the", "field")

    def layer(at, score):
        query, key, value = torch.randn(3, 2, len(words), 8, generator=generator)
        name = f"encoder.blocks.{at}.self_attention.attention"
        return Layer(name, "self", "source", "source", query, key, value, {"score": score})

    return Scene("a dog", {"source": words}, tuple(map(layer, range(3), _SCORES)))


@pytest.fixture(scope="module")
def faint():
    """A layer whose numbers are small, as those of a model with new weights."""
    generator = torch.Generator().manual_seed(4)
    words = ("a", "dog", "runs", "over", "the", "field")
    query, key, value = 0.02 * torch.randn(3, 1, len(words), 16, generator=generator)
    return Scene("a dog", {"text": words}, (Layer("only", "self", "text", "text", query, key, value),))


def view_of(opened, url, view, wanted, more="", **options):
    page = opened(f"{url}#view={view}{more}", **options)
    page.wait_for_selector(wanted)
    return page


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, {"width": 900, "height": 700}, _PHONE])
@pytest.mark.parametrize("layer", range(3))
def test_no_choice_of_a_what_if_is_cut_or_spelled_as_code(opened, served, mechanisms, layer, viewport):
    page = view_of(opened, served(mechanisms), "whatif", ".comparison .linked", f"&layer={layer}", viewport=viewport)
    assert page.evaluate(_CUT) == []
    assert "_" not in page.locator(".panel").inner_text()


@pytest.mark.slow
def test_numbers_beside_sliders_have_a_real_minus_sign(opened, served, mechanisms):
    page = view_of(opened, served(mechanisms), "whatif", ".comparison .linked")
    knob = page.locator(".panel input[type=range]").last
    knob.evaluate("node => { node.value = node.min; node.dispatchEvent(new Event('input')); }")
    told = page.locator(".panel .slider output").last.inner_text()
    assert told.startswith("−")
    assert "-" not in told


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, _PHONE])
def test_names_in_the_graph_break_between_words_and_stand_clear_of_tokens(opened, served, mechanisms, viewport):
    page = view_of(opened, served(mechanisms), "graph", ".graph .node", viewport=viewport)
    assert all(line[-1] in "._" for line in page.evaluate(_BROKEN))
    bars = [box["y"] + box["height"] for box in map(bounds, page.locator(".column i").all())]
    assert max(bars) + 2 <= min(box["y"] for box in map(bounds, page.locator(".node").all()))
    stage = bounds(page.locator(".graph-stage"))
    assert all(box["y"] >= stage["y"] for box in map(bounds, page.locator(".column b").all()))


@pytest.mark.slow
def test_the_gallery_says_which_way_its_axes_go(opened, served, mechanisms):
    page = view_of(opened, served(mechanisms), "heads", ".gallery .head")
    assert [text.lower() for text in page.locator(".layer > .caption").all_inner_texts()] == ["queries ↓ keys →"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "wanted"),
    [("map", ".field-of-view canvas[data-state=exact]"), ("alignment", ".grid .map canvas"), ("graph", ".node")],
)
def test_a_page_for_fingers_does_not_ask_to_hover(opened, served, mechanisms, view, wanted):
    page = view_of(opened, served(mechanisms), view, wanted, viewport=_PHONE, has_touch=True, is_mobile=True)
    said = page.locator(".readout").inner_text().lower()
    assert "touch" in said
    assert "hover" not in said


@pytest.mark.slow
def test_an_equation_of_parts_breaks_between_them(opened, served, mechanisms):
    page = view_of(opened, served(mechanisms), "steps", ".flow .step", viewport=_PHONE)
    parts = page.locator(".whole .formula > span")
    assert parts.count() > 1
    assert all(box["height"] < 40 for box in map(bounds, parts.all()))


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, _PHONE])
@pytest.mark.parametrize("view", ["steps", "whatif"])
def test_no_small_number_in_a_cell_is_cut_or_takes_two_lines(opened, served, faint, view, viewport):
    wanted = {"steps": ".flow .step", "whatif": ".comparison .linked"}[view]
    page = view_of(opened, served(faint), view, wanted, "&query=3", viewport=viewport)
    cells = page.evaluate(
        "() => [...document.querySelectorAll('.written .cells > span:not(.under)')]"
        ".map((n) => [n.textContent, n.scrollWidth - n.clientWidth, n.clientHeight])"
    )
    assert any("e−" in text for text, *_ in cells) or view == "whatif"
    assert len(cells) > 20
    assert [text for text, over, height in cells if over > 0 or height > 40] == []
    assert not any("-" in text for text, *_ in cells)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["map", "graph"])
def test_a_short_text_fits_on_a_desktop_screen_without_scrolling(opened, served, mechanisms, view):
    wanted = {"map": ".field-of-view canvas[data-state=exact]", "graph": ".graph .node"}[view]
    page = view_of(opened, served(mechanisms), view, wanted)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


@pytest.mark.slow
def test_the_tokens_of_a_paragraph_are_written_beside_its_map(opened, served):
    query, key, value = torch.randn(3, 1, 48, 4, generator=torch.Generator().manual_seed(8))
    words = tuple(f"w{place}" for place in range(48))
    scene = Scene("a paragraph", {"text": words}, (Layer("only", "self", "text", "text", query, key, value),))
    page = view_of(opened, served(scene), "map", ".field-of-view canvas[data-state=exact]")
    assert float(page.locator(".field-of-view canvas").get_attribute("data-scale")) >= 11
    assert page.locator(".mapcard").bounding_box()["height"] < 900


@pytest.mark.slow
def test_a_phone_shows_the_token_that_the_graph_follows(opened, served, mechanisms):
    page = view_of(opened, served(mechanisms), "graph", ".graph .node", viewport=_PHONE)
    box = page.locator(".node").first.bounding_box()
    assert 0 <= box["x"] <= 390 - box["width"]


def bounds(item):
    return item.bounding_box()


@pytest.mark.parametrize(
    "viewport", [pytest.param({"width": 1280, "height": 800}, marks=pytest.mark.slow, id="desktop"), _PHONE]
)
def test_a_long_token_shows_its_beginning_and_moves_nothing_away(opened, served, long_words, viewport):
    """Beside a map, beside and under the numbers of a step, and above an equation."""
    url = served(long_words)
    page = view_of(opened, url, "map", ".field-of-view canvas[data-state=exact]", viewport=viewport)
    page.evaluate(_WATCH)
    page.evaluate("() => { location.hash = 'view=map&query=0&key=0'; }")
    page.wait_for_selector(".equation dl")
    page.wait_for_function("() => written.filter(([text]) => text.startsWith('WW')).length >= 2")
    written = page.evaluate("written")
    assert [text for text, whole in written if not whole] == []
    assert {text[:2] for text, _ in written} >= {word[:2] for word in _LONG_WORDS}
    width = page.evaluate("document.documentElement.clientWidth")
    card, close = (page.locator(name).bounding_box() for name in (".equation", ".equation header button"))
    assert close["x"] + close["width"] <= min(width, card["x"] + card["width"])
    page.evaluate("() => { location.hash = 'view=steps&query=0'; }")
    page.wait_for_selector(".flow:not([aria-busy]) .rows bdi")
    page.wait_for_selector(".under")
    assert {tuple(row) for row in page.evaluate(_BEGINNINGS)} == {(True, "ellipsis")}

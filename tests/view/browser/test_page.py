"""The page of a translator, looked at in a real browser: what it opens on, its names, contrast, and narrow screens."""

import pytest
import torch

import qkv
from qkv.view.answers.opening import first_shown
from qkv.view.layer_names import short_names
from qkv.view.scene import Layer, Scene

_SOURCE = ("▁Ein", "▁klein", "er", "▁Hund", "▁läuft", "▁über", "▁eine", "▁grün", "e", "▁Wiese", ".")
_TARGET = ("▁A", "▁small", "▁dog", "▁runs", "▁across", "▁a", "▁green", "▁mead", "ow", ".", "<eos>")
_READY = {
    "steps": ".flow .step",
    "map": ".field-of-view canvas[data-state=exact]",
    "alignment": ".grid .map canvas",
    "graph": ".graph .node",
    "whatif": ".comparison .linked",
    "heads": ".gallery .head",
}
_PHONE = {"width": 390, "height": 844}
_CONTRAST = """
(chosen) => {
  const canvas = Object.assign(document.createElement('canvas'), { width: 1, height: 1 });
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  const over = (colors) => {
    pen.clearRect(0, 0, 1, 1);
    for (const color of colors) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const own = (node) => getComputedStyle(node).backgroundColor;
  const grounds = (node) => (node ? [...grounds(node.parentElement), own(node)] : ['white']);
  const seen = [...document.querySelectorAll(chosen)].filter((node) => node.offsetParent && node.textContent.trim());
  return seen.map((node) => {
    const below = grounds(node);
    const [one, other] = [over([...below, getComputedStyle(node).color]), over(below)].map(light).sort((a, b) => b - a);
    return [node.textContent, (one + 0.05) / (other + 0.05)];
  });
}
"""
_CELLS = """
() => {
  const canvas = Object.assign(document.createElement('canvas'), { width: 1, height: 1 });
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  const seen = (...layers) => {
    for (const paint of layers) paint(pen);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const filled = (color) => (pen) => { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const own = (node) => getComputedStyle(node).backgroundColor;
  const grounds = (node) => (node ? [...grounds(node.parentElement), own(node)] : ['white']);
  return [...document.querySelectorAll('.written .cells')].flatMap((cells) => {
    const canvas = cells.querySelector('canvas');
    return [...cells.querySelectorAll('span:not(.under)')].map((cell, at) => {
      const below = seen(...grounds(cells).map(filled), (pen) => pen.drawImage(canvas, at, 0, 1, 1, 0, 0, 1, 1));
      const [one, other] = [seen(filled(getComputedStyle(cell).color)), below].map(light).sort((a, b) => b - a);
      return [cell.textContent, (one + 0.05) / (other + 0.05)];
    });
  });
}
"""
_WRITTEN = """
const plain = CanvasRenderingContext2D.prototype.fillText;
window.written = new Map();
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  const { a, b } = this.getTransform();
  window.written.set(text, Math.abs(b) > Math.abs(a) ? 'turned' : 'upright');
  return plain.call(this, text, ...rest);
};
"""


def translation(source=_SOURCE, target=_TARGET):
    generator = torch.Generator().manual_seed(1)

    def layer(name, kind, queries, keys, **options):
        query = 2 * torch.randn(2, len(queries[1]), 8, generator=generator)
        key, value = torch.randn(2, 2, len(keys[1]), 8, generator=generator)
        return Layer(name, kind, queries[0], keys[0], query, key, value, options)

    sides = ("source", source), ("target", target)
    layers = [layer(f"encoder.blocks.{n}.self_attention.attention", "self", sides[0], sides[0]) for n in range(2)]
    for n in range(2):
        mask = qkv.masks.causal()
        layers.append(layer(f"decoder.blocks.{n}.self_attention.attention", "self", sides[1], sides[1], mask=mask))
        layers.append(layer(f"decoder.blocks.{n}.cross_attention.attention", "cross", sides[1], sides[0]))
    return Scene("Ein kleiner Hund läuft über eine grüne Wiese.", dict(sides), tuple(layers))


@pytest.fixture(scope="module")
def given():
    return translation()


@pytest.fixture(scope="module")
def letters():
    return translation(tuple("Tue, 3rd"), tuple("2011-05-03"))


def view_of(opened, url, view, **options):
    page = opened(f"{url}#view={view}" + ("&query=2&key=3" if view != "graph" else ""), **options)
    page.wait_for_selector(_READY[view])
    return page


def test_a_translator_opens_on_the_layer_that_tells_most_with_the_translation(opened, served, given):
    page = opened(served(given))
    page.wait_for_selector(_READY["map"])
    layer, head = first_shown(given)
    assert given.layers[layer].kind == "cross"
    assert [field.input_value() for field in page.locator("select").all()[:2]] == [str(layer), "mean"]
    assert head is None
    title = "Ein kleiner Hund läuft über eine grüne Wiese. → A small dog runs across a green meadow."
    assert page.locator("#summary").inner_text() == title
    assert page.url.endswith("#view=map") or "layer" not in page.url


@pytest.mark.slow
@pytest.mark.parametrize("view", _READY)
def test_no_mark_of_a_word_start_is_drawn(opened, served, given, view):
    page = view_of(opened, served(given), view)
    page.add_init_script(_WRITTEN)
    page.reload()
    page.wait_for_selector(_READY[view])
    assert "▁" not in page.locator("body").inner_text()
    assert not any("▁" in text for text in page.evaluate("[...window.written.keys()]"))


@pytest.mark.slow
def test_heads_stand_below_the_whole_name_of_their_layer(opened, served, given):
    page = view_of(opened, served(given), "heads", viewport=_PHONE)
    names = list(short_names([layer.name for layer in given.layers]))
    assert page.locator(".layer h2").all_inner_texts() == names
    assert [section.locator(".head h3").all_inner_texts() for section in page.locator(".layer").all()] == [
        ["head 0", "head 1"]
    ] * len(names)
    assert page.evaluate("[...document.querySelectorAll('.layer h2')].every((n) => n.scrollWidth <= n.clientWidth)")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", _READY)
def test_text_stands_out_from_what_is_below_it(opened, served, given, view, scheme):
    """WCAG 2.1, 1.4.3: at least 4.5 to 1; of the graph's strongest token too."""
    page = view_of(opened, served(given), view, color_scheme=scheme)
    chosen = ".node bdi, .column b, .column small, h2, h3, .lead, .tabs a, .caption, .readout, .note, #summary, dt, dd"
    found = page.evaluate(_CONTRAST, chosen)
    assert len(found) > 5
    assert [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5] == []
    if view == "graph":
        page.locator("#theme").click()
        assert min(ratio for _, ratio in page.evaluate(_CONTRAST, ".node bdi")) >= 4.5


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["steps", "whatif"])
def test_numbers_stand_out_from_the_colors_of_their_cells(opened, served, given, view, scheme):
    page = view_of(opened, served(given), view, color_scheme=scheme)
    for _ in range(2):  # then in the other theme, which no cell is drawn again for
        found = page.evaluate(_CELLS)
        assert len(found) > 20
        assert [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5] == []
        page.locator("#theme").click()


@pytest.mark.slow
def test_steps_have_a_scale_of_colors_and_the_tokens_of_their_rows(opened, served, given):
    page = view_of(opened, served(given), "steps")
    step = page.locator(".step").filter(has_text="keys").first
    assert step.locator(".rows bdi").all_inner_texts() == [
        *("Ein", "klein", "·er", "Hund", "läuft", "über", "eine", "grün", "·e", "Wiese", ".")
    ]
    rows, cells = (step.locator(each).first.bounding_box() for each in (".rows", ".cells"))
    assert rows["height"] == pytest.approx(cells["height"], abs=1)
    low, high = step.locator(".legend").inner_text().split()
    assert float(high) > 0
    assert low == f"−{high}"
    weights = page.locator(".step").filter(has_text="weights").first
    assert weights.locator(".legend").inner_text().split()[0] == "0"


@pytest.mark.slow
def test_axes_are_named_and_single_letters_are_upright(opened, served, letters):
    page = view_of(opened, served(letters), "map")
    page.add_init_script(_WRITTEN)
    page.reload()
    page.wait_for_selector(_READY["map"])
    page.wait_for_function("window.written.has('source →') && window.written.has('target ↓')")
    assert set(
        page.evaluate("[...window.written].filter(([text]) => [...text].length === 1).map(([, way]) => way)")
    ) == {"upright"}
    page = view_of(opened, served(letters), "alignment", viewport=_PHONE)
    assert [text.lower() for text in page.locator(".grid .caption").all_inner_texts()] == [
        "source",
        "target",
        "source →",
    ]
    turned = (
        "[...document.querySelectorAll('.columns bdi')].filter((n) => new DOMMatrix(getComputedStyle(n).transform).b)"
    )
    assert page.evaluate(f"{turned}.length") == 0


@pytest.mark.slow
@pytest.mark.parametrize("view", _READY)
def test_a_phone_shows_everything_within_its_edges(opened, served, given, view):
    page = view_of(opened, served(given), view, viewport=_PHONE)
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= _PHONE["width"]
    folded = page.locator("details.folded:not([hidden])").first
    assert not folded.evaluate("(node) => node.open")
    folded.locator("summary").click()
    folded.locator("button, select").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= _PHONE["width"]
    wide = """
      [...document.querySelectorAll('.ribbon, .stage, .wide')]
        .filter((node) => node.offsetParent && node.scrollWidth > node.clientWidth + 4)
        .map((node) => node.dataset.more)
    """
    assert all(page.evaluate(wide))


@pytest.mark.slow
def test_a_desktop_shows_its_controls(opened, served, given):
    page = view_of(opened, served(given), "map")
    assert page.locator("details.folded select").first.is_visible()
    assert not page.locator("details.folded summary").first.is_visible()


@pytest.mark.slow
def test_a_refused_change_keeps_the_panel_and_the_last_comparison(opened, served, given):
    page = view_of(opened, served(given), "whatif")
    before = page.locator(".comparison").inner_text()
    page.get_by_role("group", name="after", exact=True).get_by_label("normalizer").select_option("sum")
    trouble = page.locator(".comparison .trouble")
    trouble.wait_for()
    assert "Sum" in trouble.inner_text()
    assert page.locator(".comparison").inner_text().endswith(before)
    assert page.locator(".panel select").count() == 6

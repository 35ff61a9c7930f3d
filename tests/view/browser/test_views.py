import io
import math

import pytest
import torch
from matplotlib.image import imread

import qkv
from qkv.functional import attention, attention_with_weights
from qkv.view.scene import Layer, Scene

_READY = {
    "steps": ".flow .step",
    "map": ".field-of-view canvas[data-state=exact]",
    "alignment": ".grid .map canvas",
    "graph": ".graph .node",
    "whatif": ".bars li",
    "heads": ".gallery .head",
}
_VIEWS = tuple(_READY)
_LUMINANCE = torch.tensor([0.2126, 0.7152, 0.0722])
_OUTLINE = """
to => {
  const node = document.activeElement;
  for (const each of [node, ...node.querySelectorAll('canvas')]) each.style.outline = to;
}
"""
_FOCUSED = """
() => {
  const node = document.activeElement;
  const { left, top, right, bottom } = node.getBoundingClientRect();
  return [node.localName + (node.className && '.' + node.className), [left, top, right, bottom]];
}
"""


def shown(opened, url, view, more="", **options):
    layer = "" if "layer=" in more else "&layer=0"
    page = opened(f"{url}#view={view}{layer}{more}", **options)
    page.wait_for_selector(_READY[view])
    return page


@pytest.mark.slow
def test_the_viewer_opens_and_changes_its_view(opened, served, scene):
    page = shown(opened, served(scene), "alignment", "&layer=2")
    assert page.locator(".targets bdi").all_inner_texts() == [*scene.sequences["text"]]
    assert page.locator(".sources [data-note=unknown]").inner_text().endswith("Xaver")
    page.get_by_role("link", name="Heads").click()
    page.wait_for_selector(".gallery .head")
    assert page.locator(".gallery .head").count() == 6


@pytest.mark.slow
def test_steps_end_in_the_output_of_the_layer(opened, served, scene):
    page = shown(opened, served(scene), "steps", "&layer=1&head=1&query=4")
    names = page.locator(".step h3").all_inner_texts()
    assert len(names) >= 8
    layer = scene.layers[1]
    output = attention(layer.query, layer.key, layer.value, **layer.options)[1, 4]
    summed = page.locator(".step").filter(has_text="o = Σ w v").locator(".cells > span").all_inner_texts()
    assert [float(text.replace("−", "-")) for text in summed] == pytest.approx(output.tolist(), abs=6e-3)


@pytest.mark.slow
def test_each_mechanism_has_steps_of_its_own(opened, served, scene):
    page = shown(opened, served(scene), "steps", "&layer=1")
    sparse = page.locator(".flow").inner_text()
    page.locator("select").first.select_option("2")
    page.wait_for_selector(".flow:not([aria-busy])")
    page.wait_for_timeout(500)
    kernel = page.locator(".flow").inner_text()
    assert "τ" in sparse
    assert "τ" not in kernel
    assert "‖" in kernel


@pytest.mark.slow
def test_the_numbers_of_a_step_are_read_by_arrow_keys(opened, served, scene):
    page = shown(opened, served(scene), "steps", "&query=4")
    cells = page.locator(".step .cells[aria-label^=concatenated]")
    cells.focus()
    for key in ("ArrowRight", "ArrowRight", "End"):
        page.keyboard.press(key)
    said = (
        page.locator(".step .strip")
        .filter(has=page.locator(".cells[aria-label^=concatenated]"))
        .locator("output")
        .inner_text()
    )
    layer = scene.layers[0]
    joined = attention(layer.query, layer.key, layer.value, **layer.options)[:, 4].flatten()
    assert float(said.split()[-1].replace("−", "-")) == pytest.approx(float(joined[-1]), abs=6e-3)


@pytest.mark.slow
def test_an_alignment_has_the_weights_and_opens_equations(opened, served, scene):
    page = shown(opened, served(scene), "alignment", "&layer=2&head=1")
    weights = scene.layers[2].map().dense()[1]
    page.locator(".targets li").nth(3).hover()
    shares = [
        float(item.evaluate("node => node.style.getPropertyValue('--share')"))
        for item in page.locator(".sources li").all()
    ]
    assert shares == pytest.approx((weights[3] / weights.max()).tolist(), abs=1e-5)
    page.mouse.move(1, 1)
    page.locator(".map").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.wait_for_selector(".equation .result")
    assert "query=1&key=1" in page.evaluate("location.hash")
    assert float(page.locator(".result output").inner_text()) == pytest.approx(float(weights[1, 1]), abs=6e-4)


@pytest.mark.slow
def test_a_long_alignment_is_shown_piece_by_piece(opened, served, long_scene):
    page = shown(opened, served(long_scene), "alignment", "&query=300&key=10")
    assert page.locator(".targets li").count() == 64
    page.get_by_role("button", name="Later queries").click()
    page.wait_for_timeout(800)
    assert page.locator(".targets bdi").first.inner_text() == "w332"


@pytest.mark.slow
def test_the_graph_follows_a_token_and_counts_what_it_leaves_out(opened, served, scene):
    page = shown(opened, served(scene), "graph", "&way=text&follow=11&top=2&frontier=6")
    assert page.locator(".column").all_inner_texts()[-1].startswith("layer 1")
    first = scene.layers[1].map().dense().mean(0)[11].topk(2)
    links = page.locator(".graph .links path").count()
    assert 3 <= links <= 2 + 2 * 2
    left = page.locator(".column small").nth(1).inner_text()
    assert float(left.split()[0]) == pytest.approx(100 * (1 - float(first.values.sum())), abs=0.06)
    page.locator(".ribbon span").nth(2).click()
    page.wait_for_timeout(500)
    assert "follow=2" in page.evaluate("location.hash")
    page.get_by_role("button", name="text → source").click()
    page.wait_for_timeout(500)
    assert page.locator(".column").all_inner_texts()[0].startswith("inputs")
    assert set(page.locator(".node").all_inner_texts()[1:]) <= set(scene.sequences["source"])


@pytest.mark.slow
def test_another_score_moves_weights_and_output(opened, served, scene):
    page = shown(opened, served(scene), "whatif", "&query=9")
    fields = page.locator("fieldset").filter(has_text="after").first
    fields.locator("select").first.select_option("uniform")
    page.wait_for_timeout(800)
    weights = [float(text) for text in page.locator(".bars output:last-of-type").all_inner_texts()]
    assert weights[:10] == pytest.approx([0.1] * 10)
    layer = scene.layers[0]
    before = attention_with_weights(layer.query, layer.key, layer.value, **layer.options)[1][0, 9]
    shown_before = [float(text) for text in page.locator(".bars output:first-of-type").all_inner_texts()]
    assert shown_before == pytest.approx(before.tolist(), abs=6e-4)
    other = opened(page.url)
    other.wait_for_selector(".bars li")
    other.wait_for_timeout(500)
    assert other.locator(".bars").inner_text() == page.locator(".bars").inner_text()


@pytest.mark.slow
def test_two_mechanisms_stand_side_by_side_under_one_cursor(opened, served, scene):
    page = shown(opened, served(scene), "whatif", "&query=9")
    for place, score in enumerate(("cosine", "squared_distance")):
        page.locator("fieldset").nth(place).locator("select").first.select_option(score)
    page.wait_for_timeout(800)
    page.locator(".linked .cells").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    columns = page.locator(".linked").first.locator(".at").all()
    assert {item.evaluate("node => node.style.getPropertyValue('--column')") for item in columns} == {"1"}
    old, new, moved = (
        [float(t.replace("−", "-")) for t in strip.locator("span").all_inner_texts()]
        for strip in page.locator(".linked").first.locator(".cells").all()
    )
    assert moved == pytest.approx([b - a for a, b in zip(old, new, strict=True)], abs=0.012)


@pytest.mark.slow
def test_heads_are_labeled_with_their_numbers_or_with_none(opened, served, scene):
    page = shown(opened, served(scene), "heads")
    for card in page.locator(".head").all():
        holding = card.locator(".holds dt").all_inner_texts()
        assert card.locator(".label").all_inner_texts() == (holding or ["none"])
    said = page.locator(".numbers p").all_inner_texts()[:-1]
    assert [text.split()[0] for text in said] == page.locator(".head").first.locator(".label").all_text_contents()
    assert all(len(text.split()) > 3 for text in said)
    total = int(page.locator(".filter small").first.inner_text())
    page.locator(".filter").filter(has_text="none").click()
    assert page.locator(".head").count() <= total
    page.locator(".filter").first.click()
    page.locator(".head a").nth(3).click()
    page.wait_for_selector(_READY["map"])
    assert "layer=1&head=1" in page.evaluate("location.hash")


@pytest.mark.slow
def test_a_label_that_no_head_has_is_said_to_have_none(opened, served, scene):
    page = opened(f"{served(scene)}#view=heads&only=same")
    page.get_by_text("No head has this label.").wait_for()
    assert page.locator(".numbers").is_hidden()
    page.locator(".filter").first.click()
    page.wait_for_selector(_READY["heads"])
    assert page.locator(".numbers h3").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("view", _VIEWS)
@pytest.mark.parametrize("width", [390, 1280])
def test_no_view_is_wider_than_the_screen(opened, served, scene, view, width):
    page = shown(opened, served(scene), view, viewport={"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert len(page.locator(".lead").inner_text()) > 40


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_every_tab(opened, served, scene, width):
    page = shown(opened, served(scene), "map", viewport={"width": width, "height": 844})
    boxes = [tab.bounding_box() for tab in page.locator(".tabs a").all()]
    assert len(boxes) == len(_VIEWS)
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    assert len({box["y"] for box in boxes}) == 1 or width < 390


@pytest.mark.slow
@pytest.mark.parametrize("view", _VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(opened, served, scene, view, scheme):
    page = shown(opened, served(scene), view, color_scheme=scheme)
    colors = page.evaluate(
        "['background-color', 'color'].map(name => getComputedStyle(document.body).getPropertyValue(name))"
    )
    paper, ink = (luminance(value) for value in colors)
    assert (paper < ink) == (scheme == "dark")
    assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 7
    page.locator("#theme").click()
    flipped = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(flipped) < 0.2) == (scheme == "light")


def luminance(text):
    parts = torch.tensor([float(part) for part in text[text.index("(") + 1 : -1].split(",")[:3]]) / 255
    linear = torch.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return math.fsum((linear * _LUMINANCE).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("view", _VIEWS)
def test_hostile_tokens_run_nothing(opened, served, hostile_scene, view):
    page = shown(opened, served(hostile_scene), view, "&layer=2&query=3&key=5")
    for place in (".targets li", ".node", ".ribbon span", ".head a"):
        if page.locator(place).count():
            page.locator(place).first.hover()
    page.wait_for_timeout(300)
    assert page.evaluate("typeof pwned") == "undefined"
    assert page.evaluate("document.querySelectorAll('script, img, iframe, base, object, embed').length") == 2
    names = page.evaluate("[...document.querySelectorAll('*')].flatMap(node => node.getAttributeNames())")
    assert not any(name.startswith("on") for name in names)


@pytest.mark.slow
def test_all_views_are_reached_by_the_keyboard_alone(opened, served, scene):
    page = shown(opened, served(scene), "steps")
    for view in _VIEWS[1:]:
        page.evaluate("document.activeElement.blur()")
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches('.tabs a[href*=\"view={view}\"]')"):
                break
        page.keyboard.press("Enter")
        page.wait_for_selector(_READY[view])
        assert page.locator(".tabs [aria-current]").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("view", _VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_focus_is_seen_on_every_kind_of_control(opened, served, scene, view, scheme):
    """Around each, at least a line as long as its visible edge changes its contrast."""
    page = shown(opened, served(scene), view, "&query=3&key=2", color_scheme=scheme)
    kinds = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        kind, box = page.evaluate(_FOCUSED)
        if kind == "body" or kind in kinds:
            continue
        kinds.add(kind)
        left, top, right, bottom = box
        clip = {"x": max(0, left - 6), "y": max(0, top - 6)}
        clip |= {"width": min(1280, right + 6) - clip["x"], "height": min(800, bottom + 6) - clip["y"]}
        focused = page.screenshot(clip=clip)
        page.evaluate(_OUTLINE, "none")
        plain = page.screenshot(clip=clip)
        page.evaluate(_OUTLINE, "")
        lighter, darker = (torch.stack([seen(focused), seen(plain)]).aminmax(dim=0)[at] for at in (1, 0))
        changed = int(((lighter + 0.05) / (darker + 0.05) > 2).sum())
        assert changed > clip["width"] + clip["height"], kind
    assert len(kinds) >= 3


@pytest.mark.slow
def test_a_line_of_tokens_that_goes_on_shows_its_focus(opened, served, long_scene):
    """The mask that fades its ends would hide the outline around it."""
    page = shown(opened, served(long_scene), "steps", "&query=300")
    line = page.locator(".ribbon[data-more='before after']")
    assert "gradient" in line.evaluate("node => getComputedStyle(node).maskImage")
    page.locator("#theme").focus()
    while not page.evaluate("document.activeElement.matches('.ribbon')"):
        page.keyboard.press("Tab")
    assert line.evaluate("node => getComputedStyle(node).maskImage") == "none"


def seen(picture):
    """The luminance of each pixel."""
    pixels = torch.from_numpy(imread(io.BytesIO(picture))[..., :3].copy())
    linear = torch.where(pixels <= 0.04045, pixels / 12.92, ((pixels + 0.055) / 1.055) ** 2.4)
    return linear @ _LUMINANCE


@pytest.mark.slow
def test_the_graph_is_walked_by_arrow_keys(opened, served, scene):
    page = shown(opened, served(scene), "graph", "&way=text&follow=11")
    page.locator(".node[tabindex='0']").focus()
    for key, layer in (("ArrowLeft", 1), ("ArrowLeft", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        said = page.evaluate("document.activeElement.ariaLabel")
        assert page.locator(".readout").inner_text().replace("\n", " ").split()[0] == said.split(":")[0]
        assert page.evaluate("document.activeElement.offsetLeft") == page.locator(".column").nth(layer).evaluate(
            "node => node.offsetLeft"
        )
        assert page.locator(".graph .links path.on").count() > 0


@pytest.mark.slow
def test_the_whole_model_answers_under_a_change(opened, served):
    scene = qkv.load("example").scene("Ein Hund schläft .")
    page = shown(opened, served(scene), "whatif", "&head=1")
    assert page.locator(".whole table").count() == 0
    page.get_by_role("button", name="all layers").click()
    page.wait_for_selector(".whole tbody tr")
    assert page.locator(".whole tbody th").all_inner_texts() == [*scene.sequences["target"]]
    assert "Nothing is changed yet" in page.locator(".whole").inner_text()
    page.get_by_label("output").select_option("zero")
    page.wait_for_selector(".whole .turned")
    with torch.no_grad():
        answer = scene.rerun({layer.name: dict.fromkeys(range(layer.heads), "zero") for layer in scene.layers})
    assert page.locator(".whole .answer bdi").all_inner_texts()[1] == answer.text
    first = answer.probabilities[0]
    best = page.locator(".whole tbody tr").first.locator(".option").last.inner_text()
    assert best.startswith(answer.name(int(first.argmax())))
    assert best.replace("\xa0", " ").endswith(
        f"{100 * float(first.max()):.{0 if float(first.max()) > 0.0995 else 1}f} %"
    )
    assert "scope=model" in page.url
    assert "output=zero" in page.url


def test_a_recording_without_its_model_changes_pictures_only(opened, served, scene):
    page = shown(opened, served(scene), "whatif")
    assert page.locator(".whole").is_hidden()
    assert "answer" not in page.locator(".lead").inner_text()


def test_a_page_that_waits_for_its_first_answer_says_so(opened, served, scene):
    page = opened(served(scene))
    page.route("**/api/scene", lambda route: None)
    page.reload()
    assert page.evaluate("getComputedStyle(document.getElementById('page'), '::before').content") == '"Computing …"'


@pytest.mark.slow
@pytest.mark.parametrize("view", ["steps", "whatif"])
def test_a_computation_is_that_of_a_token_in_the_middle(opened, served, scene, view):
    page = shown(opened, served(scene), view)
    assert page.locator(".ribbon [aria-selected=true]").inner_text() == scene.sequences["text"][6]


@pytest.mark.slow
def test_pooling_is_offered_where_cells_are_pooled(opened, served, scene, long_scene):
    for some, pooled in ((scene, False), (long_scene, True)):
        page = shown(opened, served(some), "map")
        assert page.locator("[aria-label='Cells when zoomed out']").is_visible() == pooled


@pytest.mark.slow
def test_a_finger_sees_the_numbers_of_a_head_before_its_map(opened, served, scene):
    phone = {"viewport": {"width": 390, "height": 600}, "has_touch": True, "is_mobile": True}
    page = shown(opened, served(scene), "heads", **phone)
    card, numbers = page.locator(".head a").nth(3), page.locator(".numbers")
    card.tap()
    assert "view=heads" in page.url
    assert numbers.locator("h3").inner_text() == "layer 1, head 1"
    assert numbers.bounding_box()["y"] < 600
    card.tap()
    page.wait_for_selector(_READY["map"])
    assert "layer=1&head=1" in page.url


def test_links_are_those_of_the_threshold_without_special_tokens(opened, served):
    weights = torch.tensor(
        [[0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1], [0.4, 0.05, 0.25, 0.3], [0.97, 0.01, 0.01, 0.01]]
    )
    zeros = torch.zeros(1, 4, 1)
    layer = Layer("one", "self", "text", "text", zeros, zeros, zeros, {"bias": weights.log()[None]})
    given = Scene("", {"text": ("[CLS]", "a", "dog", ".")}, (layer,))
    page = shown(opened, served(given), "alignment")
    links = page.locator(".links path")
    assert links.count() == int((weights >= 0.05 * 0.97).sum())
    page.get_by_label("Links").select_option("most")
    page.wait_for_timeout(500)
    assert links.count() == 2
    page.get_by_label("Links").select_option("top1")
    page.wait_for_timeout(500)
    assert links.count() == 4
    page.get_by_role("button", name="without special").click()
    # Of "a", "dog" and ".", which have 0.3, 0.3 and 0.01: the last is less than 5 % of 0.3.
    page.wait_for_timeout(500)
    assert links.count() == 2
    assert page.locator(".sources [data-note=hidden]").inner_text().endswith("[CLS]")
    assert page.locator(".legend").inner_text().split()[-1] == "0.300"

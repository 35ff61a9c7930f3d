"""The page in a real browser; skipped if there is none."""

import json
from itertools import pairwise

import pytest
import torch

from qkv.view.alignment import Alignment
from qkv.view.colors import color
from qkv.view.export import save
from qkv.view.tokens import label, labels


@pytest.fixture
def opened(browser, tmp_path):
    """Open alignments from disk, offline; at the end no error or network request may have occurred."""
    troubles, contexts = [], []

    def open_(*alignments, at="", **options):
        file = tmp_path / "page.html"
        save(file, alignments)
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append(dialog.message))
        page.on("request", lambda request: request.url.startswith("file:") or troubles.append(request.url))
        page.goto(file.as_uri() + at)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert troubles == []


def test_the_map_has_the_color_of_each_weight(opened, words):
    page = opened(words)
    pixels = page.evaluate(
        "() => { const map = document.querySelector('.map canvas');"
        "return [map.width, map.height, ...map.getContext('2d').getImageData(0, 0, map.width, map.height).data]; }"
    )
    assert pixels[:2] == [8, 8]
    for place, fraction in enumerate(words.fractions().flatten().tolist()):
        shown = pixels[2 + 4 * place : 5 + 4 * place]
        assert all(abs(one - other) <= 1 for one, other in zip(shown, color(fraction), strict=True))


@pytest.mark.slow
def test_links_are_as_thick_as_their_weights(opened):
    page = opened(Alignment(("a", "b"), ("c",), torch.tensor([[0.25, 0.75]])))
    thin, thick = (float(path.get_attribute("stroke-width")) for path in page.locator(".links path").all())
    assert thick == pytest.approx(3 * thin)


def test_arrow_keys_walk_the_cells_and_a_live_region_reads_them(opened, words):
    page = opened(words)
    page.locator(".map").focus()
    for key, target, source in [
        ("ArrowDown", 0, 0),
        ("ArrowDown", 1, 0),
        ("ArrowRight", 1, 1),
        ("End", 1, 7),
        ("ArrowRight", 1, 7),
        ("Home", 1, 0),
        ("ArrowUp", 0, 0),
        ("ArrowUp", 0, 0),
        ("Control+End", 7, 7),
    ]:
        page.keyboard.press(key)
        said = page.locator("#live").inner_text()
        names = f"Target {target + 1}, {words.target[target]}; source {source + 1}, {words.source[source]}"
        assert said == f"{names}: {float(words.weights[target, source]):.3f}"
    page.keyboard.press("Escape")
    assert page.locator(".cursor").is_hidden()


def test_the_keyboard_alone_reaches_the_sentences_and_the_map(opened, words, date):
    page = opened(words, date)
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('nav a')"):
            break
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    # The address changes at once, the drawing only with the event.
    page.wait_for_function("count => document.querySelectorAll('.targets li').length === count", arg=len(date.target))
    assert page.locator(".targets").inner_text().split() == [*date.target]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.map')")


def test_hovering_goes_both_ways(opened, words):
    page = opened(words)
    page.locator(".sources li").nth(2).hover()
    assert page.locator(".links path.on").count() == page.locator(".links path").count() / 8
    assert "weiße" in page.locator("#readout").inner_text()
    page.locator(".targets li").nth(3).hover()
    shares = [
        float(item.evaluate("node => node.style.getPropertyValue('--share')"))
        for item in page.locator(".sources li").all()
    ]
    assert shares == pytest.approx(words.fractions()[3].tolist(), abs=1e-6)
    box = page.locator(".map").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 2.5 / 8, box["y"] + box["height"] * 1.5 / 8)
    assert page.locator(".targets li.on").inner_text() == "young"
    assert page.locator(".sources li.on").inner_text() == "weiße"
    page.mouse.move(1, 1)
    assert page.locator("li.on").count() == 0


@pytest.mark.slow
def test_the_address_leads_back_to_the_cell(opened, words, date):
    page = opened(words, date, at="#2/3/4")
    assert page.locator(".targets li.on").inner_text() == date.target[2]
    page.locator(".map").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") == "#2/3/5"
    page.reload()
    assert page.locator(".sources li.on").inner_text() == label(date.source[4])
    page.evaluate("location.hash = '#99/nonsense'")
    page.wait_for_function("document.querySelector('.targets').textContent.startsWith('Two')")


@pytest.mark.slow
def test_many_sentences_have_a_list_that_can_be_searched(opened, words, date):
    page = opened(*[words, date] * 50)
    assert page.locator("nav li").count() == 100
    page.locator("nav input").fill("2011")
    assert page.locator("nav li:visible").count() == 50
    page.locator("nav li:visible a").last.click()
    assert page.evaluate("location.hash") == "#100"
    assert page.locator("nav a[aria-current]").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_dark_mode_until_told_otherwise(opened, words, scheme):
    page = opened(words, color_scheme=scheme)
    lightness = "() => Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert (page.evaluate(lightness) < 128) == (scheme == "dark")
    page.locator("#theme").click()
    assert (page.evaluate(lightness) < 128) == (scheme == "light")


def test_hostile_tokens_are_only_text(opened, hostile):
    count = len(hostile)
    weights = torch.eye(count) + 0.001
    page = opened(
        Alignment(hostile, hostile, weights), *(Alignment((token,), (token,), torch.ones(1, 1)) for token in hostile)
    )
    shown = page.evaluate("[...document.querySelectorAll('.targets bdi')].map((node) => node.textContent)")
    assert shown == list(labels(hostile))
    page.locator(".targets li").nth(0).hover()
    page.locator(".map").focus()
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    page.locator("nav input").fill("<")
    assert page.evaluate("typeof pwned") == "undefined"
    assert page.evaluate("document.querySelectorAll('script, style, link, img, iframe, base').length") == 3
    inside = page.evaluate("[...document.body.querySelectorAll('*')].flatMap((node) => node.getAttributeNames())")
    assert not any(name.startswith("on") for name in inside)
    assert page.title().endswith(" · Attention")  # a text, whatever it holds


@pytest.mark.slow
def test_no_label_reaches_into_its_neighbor(opened, hostile):
    tokens = hostile[:48]
    page = opened(Alignment(tokens, tokens, torch.eye(len(tokens))))
    for side in ("sources", "targets"):
        boxes = page.evaluate(
            f"[...document.querySelectorAll('.{side} li')].map((node) => node.getBoundingClientRect())"
        )
        assert all(one["bottom"] <= other["top"] + 0.01 for one, other in pairwise(boxes))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(0, 0), (0, 2), (2, 0), (1, 1), (300, 200)])
def test_sentences_of_any_length_are_shown(opened, sizes):
    s, t = sizes
    page = opened(Alignment(("s",) * s, ("t",) * t, torch.full((t, s), 0.5)), viewport={"width": 400, "height": 700})
    assert page.locator(".sources li").count() == s
    assert page.locator(".targets li").count() == t
    assert page.locator(".empty").count() == (s * t == 0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_a_file_without_sentences_says_so(opened):
    assert opened().locator("#readout").inner_text() == "No sentences in this file."


def test_another_script_is_not_run(browser, tmp_path, words):
    save(tmp_path / "page.html", words)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    evil = "<script>document.title = 'pwned'</script><img src=x onerror=\"document.title = 'pwned'\">"
    (tmp_path / "page.html").write_text(text.replace("<noscript>", f"{evil}<noscript>"), encoding="utf-8")
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_timeout(100)
    assert page.title().endswith(" · Attention")
    assert json.dumps(said).count("Content Security Policy") >= 2
    page.close()

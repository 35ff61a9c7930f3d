"""A page that computes, as people use it: typing, another mechanism, heads switched off, by keyboard and by touch."""

import pytest

import qkv
from qkv.tasks.example_run import SENTENCES

ANSWERS = ("The old woman has seen a small dog .", "Today my brother wants to seek the red ball .")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "page.html"
    path.write_text(qkv.live(qkv.load("example"), SENTENCES).text, encoding="utf-8")
    return path.as_uri()


def answer(page):
    return page.locator(".play .written")


def awaited(page, text):
    page.wait_for_function("text => document.querySelector('.play .written').innerText.trim() === text", arg=text)


def test_what_is_typed_is_answered_and_all_views_follow(opened, address):
    page = opened(address)
    awaited(page, ANSWERS[0])
    assert page.locator("#summary").is_hidden()  # it would say again what stands below
    assert page.locator("#theme").bounding_box()["x"] > 1200
    page.locator(".sentence").fill(SENTENCES[1])
    awaited(page, ANSWERS[1])
    page.wait_for_function("text => document.title.startsWith(text)", arg=SENTENCES[1])
    for name, part in [
        ("Steps", ".step"),
        ("Alignment", ".links path"),
        ("Graph", ".graph .links path"),
        ("What if", ".comparison canvas"),
        ("Heads", "article.head canvas"),
        ("Map", ".view-map canvas"),
    ]:
        page.locator(".tabs a", has_text=name).click()
        page.locator(part).first.wait_for(state="attached")
    assert "".join(page.locator(".trouble").all_inner_texts()) == ""


def test_a_view_stays_while_the_text_changes(opened, address):
    page = opened(f"{address}#view=steps&layer=3&head=2&query=1")
    awaited(page, ANSWERS[0])
    page.locator(".sentence").fill(SENTENCES[1])
    awaited(page, ANSWERS[1])
    page.locator(".view-steps .step").first.wait_for()
    assert "layer=3" in page.url
    assert page.evaluate("document.activeElement.matches('.sentence')")


def test_heads_switched_off_and_another_mechanism_change_the_answer(opened, address):
    page = opened(address)
    awaited(page, ANSWERS[0])
    page.locator(".changes summary").click()
    heads = page.locator(".layerheads", has_text="cross").locator("button")
    for head in heads.all():
        head.click()
        assert head.get_attribute("aria-pressed") == "false"
    assert answer(page).inner_text() != ANSWERS[0]
    assert ANSWERS[0] in page.locator(".play .told").first.inner_text()
    for head in heads.all():
        head.click()
    awaited(page, ANSWERS[0])
    cross = page.locator(".play [role=group][aria-label=cross-attention]")
    cross.locator("select").first.select_option("uniform")
    page.wait_for_function("text => document.querySelector('.play .written').innerText.trim() !== text", arg=ANSWERS[0])
    cross.locator("select").first.select_option("")
    awaited(page, ANSWERS[0])


def test_the_keyboard_alone_reaches_text_heads_and_views(opened, address):
    page = opened(address)
    awaited(page, ANSWERS[0])
    reached = set()
    page.locator(".changes summary").focus()
    page.keyboard.press("Enter")
    page.locator("#theme").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.closest('.sentence, .switches, .controls, .tabs, .changes')?.className"
            )
        )
    assert {"sentence", "switches", "controls", "tabs"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(opened, address, scheme):
    page = opened(address, color_scheme=scheme, **PHONE)
    awaited(page, ANSWERS[0])
    page.locator(".changes summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_cannot_be_read_is_said(opened, address):
    page = opened(address)
    awaited(page, ANSWERS[0])
    page.locator(".sentence").fill("")
    page.wait_for_function("() => document.querySelector('.play .told').innerText.includes('Type a text')")
    page.locator(".sentence").fill("Hund " * 300)
    page.wait_for_function("() => document.querySelector('.play .told').innerText.includes('up to 256 tokens')")

"""Titles, names and tokens that a file may choose, in a real browser: everything is shown, and nothing more."""

import itertools

import pytest
import torch

import qkv
from qkv.view.alignment import Alignment
from qkv.view.export import save
from qkv.view.offline import page as saved
from qkv.view.scene import Layer, Scene

_LONG = 100_000
_NAMES = (
    *("__proto__", "constructor", "toString", "x", "$", "number", "0", "length", ""),
    *("</script><script>pwned=1</script>", "<img src=x onerror=pwned=1>", "text of a/b(c)'!*~ &start=9#%20+"),
    *("\u202egnp.exe", "\u2028\u2029", "\ud800", "\0", "url(//evil.example)", "x" * _LONG, "\u202e" * _LONG),
)
_TOKENS = (
    *("x" * _LONG, "<b>" * (_LONG // 3), "\u0301" * _LONG, "\u202e" * _LONG, "字" * _LONG),
    *("</script>", "<img src=x onerror=pwned=1>", "\u2028", "\u2066", "\ud800", "\0", "__proto__", "$", "x", "number"),
    *("url(//evil.example)", "@import '//evil.example';", "expression(pwned=1)", "javascript:pwned=1", "var(--ink)"),
)
_READY = {
    "steps": ".flow:not([aria-busy]) .step",
    "map": ".field-of-view canvas[data-state=exact]",
    "alignment": ".grid .map canvas",
    "graph": ".graph .node",
    "whatif": ".comparison .linked",
    "heads": ".gallery .head",
}
_PATIENCE = 20_000
"""Milliseconds after which a page hangs."""


def named(name, tokens=_TOKENS):
    """Two layers and their sequences, all of which have one name as far as they can."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 1, len(tokens), 4, generator=generator)
    layers = (
        Layer(name, "self", name, name, query, key, value, {"mask": qkv.masks.causal()}),
        Layer(f"{name}.", "cross", f"{name} ", name, query[:, :3], key, value),
    )
    return Scene(name, {name: tokens, f"{name} ": tokens[:3]}, layers, {name: (name,) * len(tokens)})


def alone(name):
    """One layer between the tokens of the only sequence."""
    query, key, value = torch.randn(3, 1, 3, 4, generator=torch.Generator().manual_seed(2))
    return Scene(name, {name: ("a", name, "b")}, (Layer(name, "self", name, name, query, key, value),))


def walk(page, views):
    """Visit every view of every layer; nothing runs, no element is added, and nothing is wider than the window."""
    page.wait_for_selector(_READY["map"])
    for view, layer in itertools.product(views, (0, 1)):
        page.evaluate("(hash) => { location.hash = hash; }", f"view={view}&layer={layer}&query=1&key=1&follow=1")
        page.wait_for_selector(f".view-{view} {_READY[view]}", timeout=_PATIENCE)
        assert page.evaluate("typeof pwned") == "undefined"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.evaluate("document.querySelectorAll('img, iframe, base, object').length") == 0
        assert page.evaluate("document.querySelectorAll('.home .trouble:not(:empty)').length") == 0, view


@pytest.mark.parametrize(
    "name", [*_NAMES[:1], *(pytest.param(name, marks=pytest.mark.slow) for name in _NAMES[1:])], ids=range(len(_NAMES))
)
def test_no_name_and_no_token_is_more_than_text_in_the_viewer(name, opened, served):
    page = opened(served(named(name)))
    walk(page, _READY)


@pytest.mark.parametrize(
    "name", [*_NAMES[3:4], *(pytest.param(name, marks=pytest.mark.slow) for name in _NAMES if name != "x")]
)
@pytest.mark.parametrize("made", [alone, pytest.param(named, marks=pytest.mark.slow)])
def test_no_name_and_no_token_is_more_than_text_in_a_saved_page(made, name, opened, tmp_path):
    path = tmp_path / "</script><img src=x onerror=pwned=1>.html".replace("/", "\u2028")
    path.write_text(saved(made(name)).text, encoding="utf-8")
    page = opened(path.as_uri(), offline=True)
    walk(page, [view for view in _READY if view != "whatif"])


@pytest.mark.slow
def test_tokens_of_any_length_are_only_text_in_a_page_of_sentences(opened, tmp_path):
    path = tmp_path / "page.html"
    weights = torch.eye(len(_TOKENS)).softmax(-1)
    save(path, [Alignment(_TOKENS, _TOKENS, weights), Alignment(_NAMES, _TOKENS[:1], torch.ones(1, len(_NAMES)))])
    page = opened(path.as_uri(), offline=True)
    for number in (1, 2):
        page.evaluate("(hash) => { location.hash = hash; }", f"{number}/1/1")
        page.wait_for_selector(".map canvas", timeout=_PATIENCE)
        assert page.evaluate("typeof pwned") == "undefined"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_tokens_of_any_length_are_only_shapes_in_a_picture(opened, tmp_path):
    path = tmp_path / "picture.svg"
    save(path, Alignment(_TOKENS, _NAMES, torch.ones(len(_NAMES), len(_TOKENS))))
    page = opened(path.as_uri(), offline=True)
    assert page.evaluate("typeof pwned") == "undefined"
    assert page.evaluate("document.documentElement.localName") == "svg"
    assert page.evaluate("document.querySelectorAll('script, a, foreignObject').length") == 0
    (color_bar,) = page.evaluate("[...document.querySelectorAll('image')].map((image) => image.href.baseVal)")
    assert color_bar.startswith("data:image/png;base64,")

"""A scene as one page: what it contains, what it says about the rest, and that tokens stay text."""

import json
import re

import pytest
import torch
from tests.view.saved import answers

import qkv
from qkv.view.answers.desk import RequestHandler
from qkv.view.bundle import names, one_file, static
from qkv.view.offline import page
from qkv.view.scene import Layer, Scene


def scene(tokens, heads=1):
    tensors = torch.randn(3, heads, len(tokens), 4, generator=torch.Generator().manual_seed(0))
    layer = Layer("one", "self", "text", "text", *tensors, {"mask": qkv.masks.causal()})
    return Scene("a page", {"text": tuple(tokens)}, (layer,))


def flat(values):
    return [one for item in values for one in flat(item)] if isinstance(values, list) else [values]


def test_it_carries_the_answers_of_the_server_under_their_addresses():
    given = scene("abcd")
    made = page(given)
    desk = RequestHandler(given, live=False)
    assert made.left_out == 0
    found = answers(made.text)
    assert len(found) == made.carried
    assert found["api/scene"] == desk.ask("scene", "").content
    steps = found["api/steps?layer=0&head=0&query=2"]["stages"]
    for ours, theirs in zip(steps, desk.ask("steps", "layer=0&head=0&query=2").content["stages"], strict=True):
        assert {**ours, "values": None} == {**theirs, "values": None}
        pairs = zip(flat(ours["values"]), flat(theirs["values"]), strict=True)
        assert all(one == other or one == pytest.approx(other, rel=0.05, abs=0.0051) for one, other in pairs)
    cell = desk.ask("cell", "layer=0&head=0&query=3&key=1").content
    assert found["api/cell?layer=0&head=0&query=3&key=1"]["weight"] == pytest.approx(cell["weight"], rel=1e-5)
    tile = "layer=0&head=0&level=0&row=0&column=0&how=mean&quantity=weight"
    assert found[f"api/tile?{tile}"]["shape"] == [4, 4]
    for asked in (
        "cell?layer=0&head=0&query=3&key=1",
        "steps?layer=0&head=0&query=2",
        "graph?layers=0&query=1&top=4&frontier=12",
    ):
        assert f"api/{asked}" in found


def test_what_has_no_room_is_counted():
    made = page(scene("abcdefgh", heads=2), budget=2_000)
    assert made.left_out > 0
    assert len(made.text) < page(scene("abcdefgh", heads=2)).text.__len__()
    assert "api/scene" in answers(made.text)


def test_no_token_becomes_more_than_text(hostile):
    made = page(scene(hostile), budget=1 << 20)
    clean = page(scene(["x"] * len(hostile)), budget=1 << 20)
    for mark in ("<script", "</script", "<img", "<svg", "<!--", "<iframe", "<meta", "<base", "<link"):
        assert made.text.count(mark) == clean.text.count(mark)
    listed = answers(made.text)["api/scene"]["sequences"]["text"]
    assert [token["text"] for token in listed] == [token.encode("utf-8", "replace").decode() for token in hostile]


def test_the_page_asks_nobody():
    text = page(scene("ab")).text
    assert "fetch(" not in text
    assert "connect-src" not in text
    assert "unsafe" not in text


def test_a_page_is_a_tenth_of_its_answers():
    """The numbers of a head are in its answers many times over: the page holds each list once, compressed."""
    given = scene([f"w{place}" for place in range(12)], heads=4)
    made = page(given)
    desk = RequestHandler(given, live=False)
    asked = [name.removeprefix("api/").split("?") for name in answers(made.text)]
    names = [(name, *more) for name, *more in asked if name not in {"tile", "track"}]
    plain = sum(len(json.dumps(desk.ask(name, "".join(more)).content)) for name, *more in names)
    assert len(made.text) - len(one_file("saved.js", {"packed": ""})) < plain / 6


@pytest.mark.parametrize("name", sorted(set(names()) | {"saved.js", "packed.js", "sentences.js", "embedded.js"}))
def test_comments_can_be_left_out_line_by_line(name):
    text = static(name)
    assert all(line.count("`") % 2 == 0 for line in text.splitlines())
    kept = re.sub(r"^\s*/\*\*.*?\*/\s*\n", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^\s*\*", kept, re.MULTILINE) or name.endswith(".css")

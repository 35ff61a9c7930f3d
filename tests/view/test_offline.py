"""A scene as one page: what it contains, what it says about the rest, and that tokens stay text."""

import json
import re

import torch

import qkv
from qkv.view.answers.desk import Desk
from qkv.view.offline import page
from qkv.view.scene import Layer, Scene


def scene(tokens, heads=1):
    tensors = torch.randn(3, heads, len(tokens), 4, generator=torch.Generator().manual_seed(0))
    layer = Layer("one", "self", "text", "text", *tensors, {"mask": qkv.masks.causal()})
    return Scene("a page", {"text": tuple(tokens)}, (layer,))


def answers(text):
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(data[1])["answers"]


def test_it_carries_the_answers_of_the_server_under_their_addresses():
    given = scene("abcd")
    made = page(given)
    desk = Desk(given, live=False)
    assert made.left_out == 0
    found = answers(made.text)
    assert len(found) == made.carried
    assert found["api/scene"] == desk.ask("scene", "").content
    tile = "layer=0&head=0&level=0&row=0&column=0&how=mean&quantity=weight"
    assert found[f"api/tile?{tile}"]["shape"] == [4, 4]
    for asked in (
        "cell?layer=0&head=0&query=3&key=1",
        "steps?layer=0&head=0&query=2",
        "graph?layers=0&query=1&top=4&frontier=12",
    ):
        assert f"api/{asked}" in found


def test_what_has_no_room_is_counted():
    made = page(scene("abcdefgh", heads=2), budget=20_000)
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

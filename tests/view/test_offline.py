"""A scene as one page: what it contains, what it says about the rest, and that tokens stay text."""

import json
import math
import re
from importlib.resources import files

import pytest
import torch
from tests.view.saved import answers, restored

import qkv
from qkv.view.answers.answer import Numbers
from qkv.view.answers.opening import first_shown
from qkv.view.answers.pooling import levels
from qkv.view.answers.requests import RequestHandler
from qkv.view.bundle import one_file, static
from qkv.view.not_finite import first_not_finite
from qkv.view.offline import _map, _questions, page
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
    handler = RequestHandler(given, live=False)
    assert made.left_out == 0
    found = answers(made.text)
    assert len(found) == made.carried
    assert found["api/scene"] == handler.ask("scene", "").content
    steps = found["api/steps?layer=0&head=0&query=2"]["stages"]
    for ours, theirs in zip(steps, handler.ask("steps", "layer=0&head=0&query=2").content["stages"], strict=True):
        assert {**ours, "values": None} == {**theirs, "values": None}
        pairs = zip(flat(ours["values"]), flat(restored(theirs["values"], [])), strict=True)
        assert all(one == pytest.approx(other, rel=0.05, abs=0.0051, nan_ok=True) for one, other in pairs)
    cell = handler.ask("cell", "layer=0&head=0&query=3&key=1").content
    assert found["api/cell?layer=0&head=0&query=3&key=1"]["weight"] == pytest.approx(cell["weight"], rel=1e-5)
    tile = "layer=0&head=0&level=0&row=0&column=0&how=mean&quantity=weight"
    assert found[f"api/tile?{tile}"]["shape"] == [4, 4]
    for asked in (
        "cell?layer=0&head=0&query=3&key=1",
        "steps?layer=0&head=0&query=2",
        "graph?layers=0&query=1&top=4&frontier=12",
    ):
        assert f"api/{asked}" in found


@pytest.mark.parametrize("long", ["w" * 64, "字" * 65, "\U0001f468" * 32, "\ud800" * 64, "x" * 100_000], ids=range(5))
def test_long_tokens_leave_every_number_in_its_place(long):
    """Lists and texts that occur twice are numbered: a text within a list of texts counts as well."""
    given = scene([long, *(f"{long}{letter}" for letter in "abc"), "d", "e", "f", long])
    found = answers(page(given).text)
    handler = RequestHandler(given, live=False)
    for query in range(8):
        steps = found[f"api/steps?layer=0&head=0&query={query}"]["stages"]
        for ours, theirs in zip(
            steps, handler.ask("steps", f"layer=0&head=0&query={query}").content["stages"], strict=True
        ):
            assert ours.get("labels") == theirs.get("labels")
            assert isinstance(ours["values"], type(theirs["values"]))
    assert found["api/scene"] == handler.ask("scene", "").content


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
    listed = answers(made.text)["api/scene"]["sequences"][0]["tokens"]
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
    handler = RequestHandler(given, live=False)
    asked = [name.removeprefix("api/").split("?") for name in answers(made.text)]
    names = [(name, *more) for name, *more in asked if name not in {"tile", "track"}]
    plain = sum(len(json.dumps(handler.ask(name, "".join(more)).content)) for name, *more in names)
    assert len(made.text) - len(one_file("saved.js", {"packed": ""})) < plain / 6


def speech(encoders=2, heads=2, frames=1500):
    """A translator of speech: few tokens, many frames."""
    source = [
        Layer(f"encoder.{number}", "self", "source", "source", *torch.randn(3, heads, frames, 8))
        for number in range(encoders)
    ]
    cross = Layer("cross", "cross", "target", "source", torch.randn(heads, 18, 8), *torch.randn(2, heads, frames, 8))
    names = {"source": tuple(map(str, range(frames))), "target": tuple(map(str, range(18)))}
    return Scene("speech", names, (*source, cross))


def held(made):
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', made.text, re.DOTALL)
    return json.loads(data[1])["held"]


def test_a_page_that_lacks_something_carries_the_map_that_it_opens():
    given = speech()
    made = page(given, budget=300_000)
    found, maps = answers(made.text), held(made)["maps"]
    assert maps[2][-1] == 0
    for level, tiles in ((0, 6), (3, 1)):
        for column in range(tiles):
            tile = f"layer=2&head=mean&level={level}&row=0&column={column}&how=mean&quantity=weight"
            assert f"api/tile?{tile}" in found
    assert made.missing == held(made)["missing"]
    assert re.search(r"\b[1-8] of 9 maps not at all", made.missing), "two heads of each layer, and their mean"
    assert maps[0] == [None, None, None]


@pytest.mark.parametrize(
    ("frames", "budget"),
    [
        # To compute all answers of a map takes seconds.
        pytest.param(frames, budget, marks=[pytest.mark.slow] if budget > most or budget == 20_000 else [])
        for frames, most in ((20, 100_000), (300, 400_000), (1500, 400_000))
        for budget in (0, 20_000, 100_000, 400_000, 1_500_000)
    ],
)
def test_a_page_says_of_each_map_what_it_holds(frames, budget):
    given = speech(frames=frames)
    made = page(given, budget)
    found = answers(made.text)
    for layer, maps in enumerate(held(made)["maps"]):
        for head, finest in zip([0, 1, None], maps, strict=True):
            count = levels(*given.layers[layer].shape[1:])
            whole = [
                all(f"api/{one.path}" in found for one in _map(given, layer, head, range(level, level + 1)) if one.part)
                for level in range(count)
            ]
            assert finest == (whole.index(True) if True in whole else None)
    assert (made.left_out > 0) == bool(made.missing)
    assert len(made.text) < budget + 150_000 + len(page(given, 0).text)


def diverged(number, place):
    query, key, value = torch.randn(3, 2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    layers = [Layer("fine", "self", "text", "text", query, key, value, {"mask": qkv.masks.causal()})]
    changed = {"query": query.clone(), "key": key.clone(), "value": value.clone()}
    changed[place][1, 3, 2] = number
    layers.append(Layer("bad", "self", "text", "text", *changed.values(), {"mask": qkv.masks.causal()}))
    return Scene("diverged", {"text": tuple("abcdef")}, tuple(layers))


@pytest.mark.parametrize(
    ("number", "place"),
    [
        pytest.param(number, place, marks=[] if turn == index else pytest.mark.slow)
        for turn, number in enumerate((math.nan, math.inf, -math.inf))
        for index, place in enumerate(("query", "key", "value"))
    ],
)
def test_a_diverged_layer_is_named_and_the_rest_stays_viewable(number, place):
    given = diverged(number, place)
    made = page(given)
    found, sound = answers(made.text), answers(page(Scene("fine", given.sequences, given.layers[:1])).text)
    assert made.left_out == 0
    listed = found["api/scene"]["not_finite"]
    assert (listed["layer"], listed["head"], listed["place"], listed["side"]) == (1, 1, 3, place)
    assert first_not_finite(given).text.endswith(f"in layer bad, head 1, {place} 3.")
    for asked, answer in sound.items():
        if asked.startswith(("api/tile", "api/track", "api/steps", "api/cell")):
            assert repr(found[asked]) == repr(answer)  # NaN marks what a mask hides
    handler = RequestHandler(given)
    for question in _questions(given, first_shown(given)):
        name, _, parameters = question.path.partition("?")
        answer = handler.ask(name, parameters)
        if isinstance(answer, Numbers):
            assert math.isfinite(answer.low + answer.high)
        else:
            json.dumps(answer.content, allow_nan=False)
    handler.close()


def test_scores_that_overflow_are_named():
    query, key, value = torch.full((3, 1, 4, 4), 1.0).unbind()
    query = query.clone()
    query[0, 2] = 3e38
    key = key * 3e38
    given = Scene("large", {"text": tuple("abcd")}, (Layer("one", "self", "text", "text", query, key, value),))
    found = first_not_finite(given)
    assert found is not None
    assert (found.layer, found.head, found.side) == (0, 0, "weights")
    assert first_not_finite(scene("abcd")) is None


@pytest.mark.parametrize(
    "name", [each.name for each in files("qkv.view").joinpath("static").iterdir() if each.name.endswith(".js")]
)
def test_comments_can_be_left_out_line_by_line(name):
    text = static(name)
    assert all(line.count("`") % 2 == 0 for line in text.splitlines())
    page = one_file(name, {})
    comment = False
    for line in map(str.strip, text.splitlines()):
        begins = comment or line.startswith("/**")
        comment = begins and "*/" not in line
        code = line.rpartition("*/")[2] if begins and not comment else "" if begins or line.startswith("//") else line
        code = re.sub(r"^(export )?(import .*)?", "", code)
        assert not code.strip() or code.strip() in page, line

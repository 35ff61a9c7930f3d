"""A scene as one page: that it computes what the viewer computes, what it says it lacks, and that tokens stay text."""

import json
import math
import re
from dataclasses import replace
from importlib.resources import files

import pytest
import torch
from tests.view.javascript import JavaScript
from tests.view.saved import answers, content

import qkv
from qkv.errors import ConfigError
from qkv.scores.free import Learned
from qkv.view.answers.answer import Numbers
from qkv.view.answers.requests import RequestHandler
from qkv.view.bundle import one_file, static
from qkv.view.not_finite import first_not_finite
from qkv.view.offline import page
from qkv.view.scene import Layer, ProjectedInputs, Scene

TOKENS = ("The", "dog", "and", "the", "cat", ".", "A", "dog")
HEADS, WIDTH = 2, 4


def scene(tokens, heads=1):
    tensors = torch.randn(3, heads, len(tokens), 4, generator=torch.Generator().manual_seed(0))
    layer = Layer("one", "self", "text", "text", *tensors, {"mask": qkv.masks.causal()})
    return Scene("a page", {"text": tuple(tokens)}, (layer,))


def layered(groups=HEADS, tokens=TOKENS, **options):
    """One layer with an output projection."""
    generator = torch.Generator().manual_seed(1)
    query = 1.5 * torch.randn(HEADS, len(tokens), WIDTH, generator=generator)
    key, value = torch.randn(2, groups, len(tokens), WIDTH, generator=generator)
    output = torch.randn(6, HEADS * WIDTH, generator=generator), torch.randn(6, generator=generator)
    if groups < HEADS:
        options["enable_gqa"] = True
    return Scene(
        "one", {"text": tokens}, (Layer("one", "self", "text", "text", query, key, value, options, None, output),)
    )


def projected(tokens=60):
    """A layer whose inputs and projections are fewer numbers than its queries, keys and values."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, 8, generator=generator)
    weights, biases = torch.randn(3, 8, 8, generator=generator), torch.randn(3, 8, generator=generator)
    query, key, value = ((x @ w.T + b).view(tokens, 2, 4).transpose(0, 1) for w, b in zip(weights, biases, strict=True))
    inputs = ProjectedInputs(x, x.clone(), x.clone(), *weights, *biases)
    layer = Layer("one", "self", "text", "text", query, key, value, {"mask": qkv.masks.causal()}, inputs=inputs)
    return Scene("projected", {"text": tuple(f"w{place}" for place in range(tokens))}, (layer,))


generator = torch.Generator().manual_seed(3)
dense = torch.rand(HEADS, len(TOKENS), len(TOKENS), generator=generator) > 0.3
SCENES = {
    "plain": layered,
    "grouped": lambda: layered(groups=1),
    "window": lambda: layered(mask=qkv.masks.window(2, 1)),
    "lengths": lambda: layered(mask=qkv.masks.lengths(torch.tensor(5))),
    "dense": lambda: layered(mask=qkv.masks.dense(dense)),
    "bias": lambda: layered(bias=torch.randn(HEADS, 8, 8, generator=torch.Generator().manual_seed(4))),
    "alibi": lambda: layered(bias=qkv.biases.alibi(torch.tensor([0.5, 0.1])), mask=qkv.masks.causal()),
    "sink": lambda: layered(normalizer=qkv.normalizers.Softmax(sink=torch.tensor([0.5, -1.0]))),
    "bandwidths": lambda: layered(score=qkv.scores.Gaussian(bandwidth=torch.tensor([1.0, 2.0]))),
    "sparsemax": lambda: layered(normalizer=qkv.normalizers.Sparsemax()),
    "projected": projected,
    "function": lambda: layered(score=Learned(lambda q, k: (q @ k.mT).sin())),
}


@pytest.fixture(scope="module")
def js(browser):
    return JavaScript(browser)


ASKED = """async ([data, paths]) => {
  const source = await m["recorded.js"].recorded(data);
  const plain = (grid) => ({ ...grid, values: [...grid.values] });
  const ask = (path) => (/tile|track/.test(path) ? source.grid(path).then(plain) : source.json(path));
  return Promise.all(paths.map(ask));
}"""


def answered(js, made, paths):
    return dict(zip(paths, js.evaluate(ASKED, [content(made.text), [f"api/{path}" for path in paths]]), strict=True))


def paths_of(count):
    tile = "level=0&row=0&column=0"
    maps = [f"layer=0&head={head}" for head in (0, 1, "mean")]
    return [
        *(f"tile?{where}&{tile}&how=mean&quantity={what}" for where in maps for what in ("weight", "contribution")),
        f"tile?layer=0&head=mean&{tile}&how=mean&quantity=rollout",
        *(f"track?{where}&what={what}&level=0" for where in maps for what in ("entropy", "received", "peak")),
        *(f"cell?{where}&query={query}&key={key}" for where in maps for query in (2, count - 1) for key in (0, 2)),
        f"graph?layers=0&query={count - 1}&top=4&frontier=12",
    ]


def numbers_of(answer):
    if isinstance(answer, Numbers):
        return torch.frombuffer(bytearray(answer.content), dtype=torch.float32).tolist()
    if "weight" in answer.content:
        return [answer.content["weight"]]
    return [one["mass"] for one in answer.content["nodes"]]


@pytest.mark.parametrize("name", SCENES)
def test_a_page_computes_what_the_viewer_computes(js, name):
    given = SCENES[name]()
    made, handler = page(given), RequestHandler(given)
    paths = paths_of(len(given.sequences["text"]))
    found = answered(js, made, paths)
    close = {"rel": 1e-3, "abs": 1e-3} if name == "function" else {"rel": 1e-5, "abs": 2e-6}
    for path in paths:
        ours, theirs = found[path], handler.ask(*path.split("?"))
        mine = ours.get("values") or ([ours["weight"]] if "weight" in ours else [one["mass"] for one in ours["nodes"]])
        assert mine == pytest.approx(numbers_of(theirs), **close), path
    assert bool(made.missing) == (name == "function")
    handler.close()


def test_rollout_of_a_page_is_that_of_the_viewer_through_both_sides(js):
    given = translator()
    made, handler = page(given), RequestHandler(given)
    paths = [f"tile?layer={layer}&head=mean&level=0&row=0&column=0&how=mean&quantity=rollout" for layer in range(4)]
    found = answered(js, made, paths)
    for path in paths:
        assert found[path]["values"] == pytest.approx(numbers_of(handler.ask(*path.split("?"))), abs=1e-6)
    handler.close()


def translator():
    """Two layers that read five tokens, and two that write three."""
    generator = torch.Generator().manual_seed(8)

    def layer(name, kind, queries, keys):
        sizes = {"source": 5, "target": 3}
        query = torch.randn(2, sizes[queries], 4, generator=generator)
        return Layer(name, kind, queries, keys, query, *torch.randn(2, 2, sizes[keys], 4, generator=generator))

    layers = (
        layer("encoder.0", "self", "source", "source"),
        layer("encoder.1", "self", "source", "source"),
        layer("decoder.0", "self", "target", "target"),
        layer("decoder.cross", "cross", "target", "source"),
    )
    return Scene("small", {"source": tuple("abcde"), "target": tuple("xyz")}, layers)


@pytest.mark.parametrize("name", [name for name in SCENES if name != "function"])
def test_steps_of_a_page_have_the_numbers_of_the_viewer(js, name):
    given = SCENES[name]()
    handler = RequestHandler(given)
    ask = "layer=0&head=1&query=3"
    ours = {step["symbol"]: step for step in answered(js, page(given), [f"steps?{ask}"])[f"steps?{ask}"]["stages"]}
    theirs = {step["symbol"]: step for step in handler.ask("steps", ask).content["stages"]}
    assert {"q", "k", "v", "w", "w v", "o", "[o₁ … o_H]"} <= {*ours} & {*theirs}
    for symbol in {*ours} & {*theirs} - {"s", "m", "e", "Z"}:
        if symbol != "q·k":  # of masked keys too, in Python
            assert ours[symbol]["values"] == pytest.approx(theirs[symbol]["values"], abs=1e-5), symbol
            assert ours[symbol].get("labels") == theirs[symbol].get("labels")
    handler.close()


def test_a_page_tries_another_mechanism_as_the_viewer_does(js):
    given = SCENES["window"]()
    body = {"layer": 0, "head": 1, "query": 4, "score": {"name": "gaussian", "parameters": {"bandwidth": 2.0}}}
    ask = """async ([data, body]) => (await m["recorded.js"].recorded(data)).post("api/whatif", body)"""
    ours = js.evaluate(ask, [content(page(given).text), body])
    handler = RequestHandler(given)
    theirs = handler.ask("whatif", "", body).content
    for side in ("before", "after"):
        assert ours[side]["weights"] == pytest.approx(theirs[side]["weights"], abs=1e-5)
    handler.close()


def test_inputs_and_weights_take_the_place_of_more_numbers():
    [layer] = content(page(projected()).text)["layers"]
    assert set(layer["query"]) == {"input", "weight", "bias"}
    assert layer["query"]["input"] == layer["value"]["input"] == layer["inputs"]
    [short] = content(page(projected(tokens=6)).text)["layers"]
    assert isinstance(short["query"], list)


def test_layers_share_the_inputs_that_they_have_in_common():
    one = projected().layers[0]
    layers = tuple(replace(one, name=str(number), inputs=replace(one.inputs)) for number in range(3))
    data = content(page(Scene("shared", {"text": projected().sequences["text"]}, layers)).text)
    assert len(data["inputs"]) == 1
    assert [layer["value"]["input"] for layer in data["layers"]] == [{"tensor": "input.0"}] * 3


def test_each_layer_has_a_picture_before_one_has_details():
    given = speech(encoders=3, frames=600, width=256)
    base = len(page(given, 0).text)
    levels = content(page(given, (base + 1_000_000) / 1e6).text)["held"]["levels"]
    assert None not in levels
    assert any(levels)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_page_opens_whatever_numbers_a_normalizer_has(js, number):
    softmax = qkv.normalizers.Softmax(sink=torch.tensor([number, 0.0]))
    made = page(layered(normalizer=softmax), float("inf"))
    assert "stages" in answered(js, made, ["steps?layer=0&head=1&query=3"])["steps?layer=0&head=1&query=3"]
    [layer] = content(made.text)["layers"]
    assert math.isnan(float(layer["normalizer"]["heads"][0]["sink"]["number"])) == math.isnan(number)


def test_coarse_maps_and_missing_layers_give_no_wrong_numbers(js):
    given = speech(encoders=2, frames=600, width=256)
    empty = page(given, 0)
    made = page(given, len(empty.text) / 1e6 + 0.2)
    coarse = next(at for at, level in enumerate(content(made.text)["held"]["levels"]) if level)
    paths = [f"track?layer={coarse}&head=0&level=0&what={what}" for what in ("entropy", "peak", "received")]
    found = answered(js, made, paths)
    assert [len(found[path]["values"]) for path in paths] == [0, 0, given.layers[coarse].shape[2]]
    for path in ("graph?layers=0&query=0&top=4&frontier=12", "cell?layer=0&head=mean&query=0&key=0", paths[0]):
        with pytest.raises(Exception, match=r"holds (nothing|only the weights) of this layer"):
            answered(js, empty, [path])


@pytest.mark.parametrize("size", [-1.0, float("nan")])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ConfigError, match="size"):
        page(layered(), size)


def test_inputs_do_not_stand_for_queries_that_were_rotated():
    given = projected()
    layer = given.layers[0]
    moved = Layer("one", "self", "text", "text", layer.query.flip(-1), layer.key, layer.value, inputs=layer.inputs)
    [held] = content(page(Scene("rotated", given.sequences, (moved,))).text)["layers"]
    assert isinstance(held["query"], list)


def speech(encoders=2, heads=2, frames=1500, width=8):
    """A translator of speech: few tokens, many frames."""
    random = lambda *shape: torch.randn(*shape, width, generator=torch.Generator().manual_seed(6))  # noqa: E731
    source = [
        Layer(f"encoder.{number}", "self", "source", "source", *random(3, heads, frames)) for number in range(encoders)
    ]
    cross = Layer("cross", "cross", "target", "source", random(heads, 18), *random(2, heads, frames))
    names = {"source": tuple(map(str, range(frames))), "target": tuple(map(str, range(18)))}
    return Scene("speech", names, (*source, cross))


@pytest.mark.parametrize("frames", [20, 300, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("room", [0, 40_000, 150_000, 600_000])
def test_a_page_holds_what_fits_and_says_what_it_lacks(frames, room):
    given = speech(frames=frames)
    base = len(page(given, 0).text)
    made = page(given, (base + room) / 1e6)
    assert len(made.text) <= base + room + 300  # the sentence about what it lacks
    data = content(made.text)
    assert data["held"]["missing"] == made.missing
    levels = data["held"]["levels"]
    assert levels == [None if layer is None else layer["level"] for layer in data["layers"]]
    assert ("the maps of" in made.missing) == (None in levels)
    assert ("the details" in made.missing) == any(level for level in levels)
    steps = [layer is None or "tables" in layer for layer in data["layers"]]
    assert ("the steps of" in made.missing) == any(steps)
    if room >= 150_000:
        assert levels[2] == 0, "the layer that it opens on"


def test_a_coarse_map_is_that_of_the_viewer(js):
    given = speech(frames=600, width=256)
    made = page(given, len(page(given, 0).text) / 1e6 + 0.7)
    assert content(made.text)["held"]["levels"][0] == 1
    handler = RequestHandler(given)
    for level in (1, 2):
        tile = f"tile?layer=0&head=1&level={level}&row=0&column=0&how=mean&quantity=weight"
        found = answered(js, made, [tile])[tile]["values"]
        assert found == pytest.approx(numbers_of(handler.ask(*tile.split("?"))), rel=2e-3)
    handler.close()


def test_no_token_becomes_more_than_text(hostile):
    made, clean = page(scene(hostile)), page(scene(["x"] * len(hostile)))
    for mark in ("<script", "</script", "<img", "<svg", "<!--", "<iframe", "<meta", "<base", "<link"):
        assert made.text.count(mark) == clean.text.count(mark)
    listed = answers(made.text)["api/scene"]["sequences"][0]["tokens"]
    assert [token["text"] for token in listed] == [token.encode("utf-8", "replace").decode() for token in hostile]


def test_the_page_asks_nobody():
    text = page(scene("ab")).text
    assert "fetch(" not in text
    assert "connect-src" not in text
    assert "unsafe" not in text


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
def test_a_diverged_layer_is_named_and_the_rest_stays_viewable(js, number, place):
    given = diverged(number, place)
    made = page(given)
    assert made.missing == ""
    listed = answers(made.text)["api/scene"]["not_finite"]
    assert (listed["layer"], listed["head"], listed["place"], listed["side"]) == (1, 1, 3, place)
    assert first_not_finite(given).text.endswith(f"in layer bad, head 1, {place} 3.")
    handler, sound = RequestHandler(given), Scene("fine", given.sequences, given.layers[:1])
    asked = [*paths_of(6), "steps?layer=0&head=1&query=3"]
    assert answered(js, made, asked) == answered(js, page(sound), asked)
    [bad] = answered(js, made, ["steps?layer=1&head=1&query=3"]).values()
    by_symbol = {step["symbol"]: step["values"] for step in bad["stages"]}
    assert all(map(math.isfinite, by_symbol["q"])) == (place != "query")
    tile = handler.ask("tile", "layer=1&head=1&level=0&row=0&column=0&how=mean&quantity=weight")
    assert math.isfinite(tile.low + tile.high)
    json.dumps(handler.ask("steps", "layer=1&head=1&query=3").content, allow_nan=False)
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

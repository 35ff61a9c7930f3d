"""Questions about one row, one column or one track, and the answer to questions that have none."""

import pytest
import torch

import qkv
from qkv.errors import ConfigError, UnsupportedError
from qkv.normalizers.dense import Identity
from qkv.scores.kernels import Gaussian
from qkv.scores.products import Dot
from qkv.view.answers.requests import RequestHandler
from qkv.view.scene import Layer, Scene


def test_weights_that_may_be_negative_have_no_entropy(made):
    handler, _, _ = made({"normalizer": Identity()})
    with pytest.raises(ConfigError, match=r"what: expected a statistic defined for negative weights; got entropy"):
        handler.ask("track", "layer=0&head=0&what=entropy&level=0")


@pytest.mark.parametrize("what", ["entropy", "received", "peak"])
def test_a_track_is_the_maps_own_statistic(what, made, grid):
    handler, weights, _ = made({})
    found = grid(handler.ask("track", f"layer=0&head=0&what={what}&level=0")).flatten()
    expected = {
        "entropy": torch.special.entr(weights[0]).sum(-1),
        "received": weights[0].sum(0),
        "peak": weights[0].amax(-1),
    }[what]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"mask": qkv.masks.causal()}, {"normalizer": Identity()}])
@pytest.mark.parametrize("quantity", ["weight", "contribution"])
def test_a_map_of_the_mean_is_the_mean_of_the_maps(options, quantity, made, grid):
    handler, _, _ = made(options)
    heads = handler.scene.layers[0].heads
    for question in ("tile", "track"):
        rest = f"level=0&row=0&column=0&how=mean&quantity={quantity}" if question == "tile" else "level=0&what=received"
        maps = [grid(handler.ask(question, f"layer=0&head={head}&{rest}")) for head in [*range(heads), "mean"]]
        torch.testing.assert_close(maps[-1], torch.stack(maps[:-1]).mean(0), rtol=1e-5, atol=1e-6)
    assert handler.ask("progress", f"layer=0&head=mean&how=mean&quantity={quantity}").content["done"] == 1


def test_a_cell_of_the_mean_names_the_weight_of_each_head(made):
    handler, weights, _ = made({})
    found = handler.ask("cell", "layer=0&head=mean&query=2&key=3").content
    assert [line["value"] for line in found["lines"]] == pytest.approx(weights[:, 2, 3].tolist(), rel=1e-5)
    assert found["weight"] == pytest.approx(float(weights[:, 2, 3].mean()), rel=1e-5)


@pytest.mark.parametrize("question", ["steps", "mechanisms"])
def test_what_only_a_head_has_is_refused_for_the_mean(question, made):
    handler, _, _ = made({})
    rest = {"steps": "&query=0", "mechanisms": ""}[question]
    with pytest.raises(ConfigError, match="head: expected an integer"):
        handler.ask(question, f"layer=0&head=mean{rest}")


def test_exact_levels_can_be_put_off_and_gone_on_with(made):
    handler, _, _ = made({})
    handler.ask("tile", "layer=0&head=0&level=0&row=0&column=0&how=mean&quantity=weight")
    for question in ("cancel", "resume"):
        assert handler.ask(question, "layer=0&head=0").content == {}
    assert handler.ask("progress", "layer=0&head=0&how=mean&quantity=weight").content["done"] == 1
    handler.close()


REFUSED = [
    ([], "the request: expected an object; got list"),
    ({"layer": 0, "head": 0, "query": 0, "colour": 1}, "'colour': expected a known field"),
    ({"layer": True, "head": 0, "query": 0}, "layer: expected an integer from 0 to 0; got True"),
    ({"layer": 0, "head": 0, "query": 6}, "query: expected an integer from 0 to 5; got 6"),
    ({"vector": [1.0]}, "vector: expected 4 numbers; got 1 of them"),
    ({"vector": "1234"}, "vector: expected 4 numbers; got str"),
    ({"vector": [1, 2, 3, "x"]}, "vector: expected a number from -1e+30 to 1e+30; got 'x'"),
    ({"temperature": 0}, "temperature: expected a number from 0.001 to 1000; got 0"),
    ({"score": "dot"}, "score: expected an object with a name"),
    ({"score": {"name": "dto"}}, "score: expected one of the available names; got 'dto'"),
    ({"score": {"name": "dot", "parameters": {"x": 1}}}, "score.parameters: expected parameters of dot; got 'x'"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_a_malformed_what_if_is_named(body, message, made):
    handler, _, _ = made({})
    if isinstance(body, dict) and "layer" not in body:
        body = {"layer": 0, "head": 0, "query": 0, **body}
    with pytest.raises(ConfigError) as raised:
        handler.ask("whatif", "", body)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({}, {"bandwidth": 2.0}, "bandwidth: expected a distance score; got ScaledDot"),
        ({"score": Gaussian()}, {"temperature": 2.0}, "temperature: expected scores that are not normalized"),
        ({"bias": qkv.biases.Alibi(2)}, {"temperature": 2.0}, "temperature: expected no position bias"),
    ],
)
def test_a_change_without_meaning_is_answered_with_what_is_wrong(options, change, message, made):
    handler, _, _ = made(options)
    found = handler.ask("whatif", "", {"layer": 0, "head": 0, "query": 1, **change}).content
    assert found["error"].startswith(message)
    assert found["before"] == found["after"]


def test_a_temperature_of_one_and_a_vector_change_only_what_they_say(made):
    handler, _, _ = made({"score": Dot()})
    where = {"layer": 0, "head": 1, "query": 3}
    same = handler.ask("whatif", "", {**where, "temperature": 1}).content
    assert same["before"] == same["after"]
    layer = handler.scene.layers[0]
    own = layer.query[1, 3].tolist()
    assert handler.ask("whatif", "", {**where, "vector": own}).content["after"] == same["before"]
    other = handler.ask("whatif", "", {**where, "vector": layer.query[1, 4].tolist()}).content
    there = handler.ask("whatif", "", {**where, "query": 4, "temperature": 1}).content
    assert other["after"] == there["before"]


def stacked(*options: dict) -> RequestHandler:
    layers = tuple(
        Layer(f"layer {place}", "self", "text", "text", *torch.randn(3, 2, 4, 8), given)
        for place, given in enumerate(options)
    )
    other = Layer("other", "cross", "text", "image", *torch.randn(3, 2, 4, 8))
    return RequestHandler(Scene("a stack", {"text": tuple("abcd"), "image": tuple("wxyz")}, (*layers, other)))


def test_a_token_followed_down_spreads_a_mass_of_one():
    handler = stacked({}, {"mask": qkv.masks.causal()})
    found = handler.ask("graph", "layers=0,1&query=2&top=4&frontier=4").content
    for level in (0, 1):
        assert sum(node["mass"] for node in found["nodes"] if node["layer"] == level) == pytest.approx(1, abs=1e-6)
    assert found["discarded"] == pytest.approx([0, 0], abs=1e-6)
    few = handler.ask("graph", "layers=0,1&query=2&top=1&frontier=1").content
    assert [node["layer"] for node in few["nodes"]] == [2, 1, 0]
    assert few["discarded"][1] == pytest.approx(1 - few["nodes"][1]["mass"], abs=1e-6)


def test_layers_that_do_not_follow_and_weights_without_mass_are_named():
    with pytest.raises(ConfigError, match="layers: expected a layer whose queries are 'image' below 'other'"):
        stacked({}).ask("graph", "layers=0,1&query=0&top=1&frontier=1")
    with pytest.raises(UnsupportedError, match="layers: expected non-negative weights; got 'layer 0'"):
        stacked({"normalizer": Identity()}).ask("graph", "layers=0&query=0&top=1&frontier=1")

"""Every mechanism in the viewer: the numbers of each step lead to the layer's own output."""

import json
import math

import pytest
import torch

import qkv
from qkv.biases import alibi
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.free import Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat
from qkv.view.answers.gallery import heads
from qkv.view.scene import Layer, Scene

torch.manual_seed(5)
PER_HEAD = torch.tensor([0.5, 0.75])


class Squares(qkv.normalizers.Normalizer):
    """w = s²/Σs²."""

    def __call__(self, scores, visible=None):
        squares = scores.square() if visible is None else torch.where(visible, scores.square(), 0.0)
        return squares / squares.sum(-1, keepdim=True).clamp(min=1e-30)


class Falling(qkv.biases.Bias):
    """−m·i/(1 + j), for each head another m."""

    def tile(self, rows_Q1, columns_K):
        return -PER_HEAD[:, None, None] * rows_Q1 / (1 + columns_K)


class Diagonal(qkv.masks.Mask):
    """Each head sees the keys of another diagonal, and the first key."""

    def visible(self, grid, rows_Q1, columns_K):
        head = torch.arange(grid.leading[0])[:, None, None]
        return ((columns_K - rows_Q1 + head) % 2 == 0) | (columns_K == 0)


MECHANISMS = {
    "scaled dot": {},
    "dot, mask": {"score": Dot(), "mask": qkv.masks.causal()},
    "soft cap": {"score": ScaledDot(scale=PER_HEAD, softcap=2.0)},
    "cosine, sink": {"score": Cosine(3.0), "normalizer": Softmax(sink=PER_HEAD)},
    "bilinear": {"score": Bilinear(torch.randn(2, 4, 4))},
    "additive": {"score": Additive(torch.randn(2, 5), torch.randn(2, 5, 4), torch.randn(2, 5, 4))},
    "additive, projected": {"score": Additive(torch.randn(4)), "normalizer": Entmax()},
    "concat": {"score": Concat(torch.randn(2, 4), torch.randn(4)), "normalizer": Mean()},
    "GAT": {"score": Concat(torch.randn(4), torch.randn(4), "leaky_relu")},
    "distance, ALiBi": {"score": SquaredDistance(), "bias": alibi(PER_HEAD)},
    "Gaussian": {"score": Gaussian(2 * PER_HEAD), "mask": torch.rand(2, 6, 9) > 0.3},
    "boxcar": {"score": Boxcar(2.0)},
    "Epanechnikov": {"score": Epanechnikov(3.0, power=1)},
    "uniform": {"score": Uniform(), "mask": qkv.masks.window(2, 1)},
    "yours": {"score": lambda query, key: -torch.cdist(query, key, p=1), "bias": torch.randn(2, 6, 9)},
    "your mask and bias": {"mask": Diagonal() & qkv.masks.causal(3), "bias": Falling()},
    "your normalizer": {"normalizer": Squares(), "mask": qkv.masks.causal()},
    "hard": {"normalizer": Hard(), "mask": qkv.masks.causal()},
    "identity": {"normalizer": Identity()},
    "sparsemax": {"normalizer": Sparsemax(), "mask": qkv.masks.causal()},
    "learned entmax": {"normalizer": Entmax(1 + PER_HEAD)},
    "sigmoid": {"normalizer": Sigmoid(), "mask": qkv.masks.causal()},
    "sees nothing": {"mask": qkv.masks.lengths(None, 2)},
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_tiles_steps_and_cells_are_the_layers_own_numbers(name, made, grid):
    handler, weights, projected = made(MECHANISMS[name])
    for head in range(2):
        tile = grid(handler.ask("tile", f"layer=0&head={head}&level=0&row=0&column=0&how=max&quantity=weight"))
        torch.testing.assert_close(tile, weights[head], rtol=1e-5, atol=1e-6)
        for query in (0, 4):
            stages = handler.ask("steps", f"layer=0&head={head}&query={query}").content["stages"]
            json.dumps(stages, allow_nan=False)
            torch.testing.assert_close(torch.tensor(stages[-1]["values"]), projected[query], rtol=1e-4, atol=1e-5)
            shown = next(stage for stage in stages if stage["symbol"] == "w")
            torch.testing.assert_close(torch.tensor(shown["values"]), weights[head, query], rtol=1e-5, atol=1e-6)
            cell = handler.ask("cell", f"layer=0&head={head}&query={query}&key=1").content
            assert cell["weight"] == pytest.approx(float(weights[head, query, 1]), rel=1e-5, abs=1e-6)
            assert cell["lines"][-1]["value"] == pytest.approx(cell["weight"], abs=1e-6)


def test_the_score_of_each_step_normalizes_to_the_weights(made):
    handler, weights, _ = made(MECHANISMS["additive"])
    stages = {stage["symbol"]: stage for stage in handler.ask("steps", "layer=0&head=1&query=3").content["stages"]}
    hidden = torch.tensor(stages["h"]["values"], dtype=torch.float64).view(stages["h"]["shape"])
    scores = hidden @ torch.tensor(stages["v"]["values"][: hidden.shape[1]], dtype=torch.float64)
    assert list(scores) == pytest.approx(stages["s"]["values"])
    torch.testing.assert_close(scores.softmax(-1).float(), weights[1, 3])


def test_a_kernel_shows_distances_and_sparse_weights_their_threshold(made):
    def symbols(name):
        handler, _, _ = made(MECHANISMS[name])
        return [stage["symbol"] for stage in handler.ask("steps", "layer=0&head=0&query=3").content["stages"]]

    assert [symbol for symbol in symbols("Gaussian") if symbol in ("‖q−k‖²", "x", "Z")] == ["‖q−k‖²", "x", "Z"]
    assert "τ" in symbols("sparsemax")
    assert "tanh" not in symbols("scaled dot")


def test_a_cell_is_filled_with_its_numbers(made):
    handler, _, _ = made({})
    lines = handler.ask("cell", "layer=0&head=0&query=2&key=3").content["lines"]
    product, scaled, *_, weight = lines
    assert product["equation"] == "q·k"
    assert scaled["value"] == pytest.approx(product["value"] / math.sqrt(4))
    assert "/" in weight["filled"]


def test_a_hidden_pair_says_so(made):
    handler, _, _ = made({"mask": qkv.masks.causal()})
    cell = handler.ask("cell", "layer=0&head=0&query=2&key=3").content
    assert cell["weight"] == 0
    assert "mask" in cell["lines"][0]["filled"]


def test_contribution_is_weight_times_the_length_of_the_projected_value(made, grid):
    handler, weights, _ = made({})
    layer = handler.scene.layers[0]
    for head in range(2):
        part = layer.output[0][:, 3 * head : 3 * head + 3]
        expected = weights[head] * (layer.value[head] @ part.mT).norm(dim=-1)
        found = grid(handler.ask("tile", f"layer=0&head={head}&level=0&row=0&column=0&how=mean&quantity=contribution"))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"temperature": 2.0}, {"score": ScaledDot(scale=0.25)}),
        ({"score": {"name": "gaussian", "parameters": {"bandwidth": 2.0}}}, {"score": Gaussian(2.0)}),
        ({"normalizer": {"name": "entmax", "parameters": {"alpha": 1.5}}}, {"normalizer": Entmax()}),
        ({"mask": {"name": "window", "parameters": {"left": 1, "right": 0}}}, {"mask": qkv.masks.window(1, 0)}),
        ({"score": {"name": "squared_distance"}, "bandwidth": 3.0}, {"score": SquaredDistance(3.0)}),
    ],
)
def test_what_if_is_what_the_other_mechanism_gives(change, options, made):
    handler, before, _ = made({})
    _, after, _ = made(options)
    found = handler.ask("whatif", "", {"layer": 0, "head": 1, "query": 3} | change).content
    assert "error" not in found
    assert found["before"]["weights"] == pytest.approx(before[1, 3].tolist(), rel=1e-4, abs=1e-6)
    assert found["after"]["weights"] == pytest.approx(after[1, 3].tolist(), rel=1e-4, abs=1e-6)


def test_what_if_with_another_query_vector(made):
    handler, _, _ = made({})
    found = handler.ask("whatif", "", {"layer": 0, "head": 0, "query": 1, "vector": [0, 0, 0, 0]}).content
    assert found["after"]["weights"] == pytest.approx([1 / 9] * 9)


def test_what_if_tells_why_a_change_has_no_meaning(made):
    handler, _, _ = made({"score": Gaussian()})
    found = handler.ask("whatif", "", {"layer": 0, "head": 0, "query": 1, "temperature": 2}).content
    assert "bandwidth" in found["error"]
    assert found["after"] == found["before"]


def test_a_token_is_followed_and_nothing_is_lost_unsaid(made):
    handler, weights, _ = made({})
    found = handler.ask("graph", "layers=0&query=2&top=3&frontier=2").content
    mean = weights[:, 2].double().mean(0)
    kept = [node for node in found["nodes"] if node["layer"] == 0]
    assert [node["mass"] for node in kept] == pytest.approx(mean.topk(2).values.tolist())
    assert sum(node["mass"] for node in kept) + found["discarded"][0] == pytest.approx(1.0)


def test_the_gallery_finds_a_previous_token_head_and_a_broad_one():
    place = torch.eye(12)
    query, key = torch.stack([30 * place, 0 * place]), torch.stack([place.roll(-1, 0), 0 * place])
    layer = Layer("one", "self", "text", "text", query, key, torch.ones(2, 12, 2))
    found = heads(Scene("", {"text": tuple("abcdefghijkl")}, (layer,)))
    assert [{label["name"] for label in head["labels"] if label["holds"]} for head in found] == [
        {"previous"},
        {"broad"},
    ]

"""Where a new score is found, once its class and its entry are written: on every surface, with nothing else changed.

Run by `test_catalog.py` in a process of its own, in which `tests.scores.laplace` is loaded first.
"""

import importlib.util
import math
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.cli.command import refused, run, succeeded
from tests.scores.laplace import Laplace

import qkv
from qkv.engine.describe import Arguments
from qkv.nn.distance_scores import KernelScore
from qkv.nn.first_batch import start_from_first_batch
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.planner.plan_cache import PLANS, cache_key
from qkv.recording.saved_mechanisms import ValueReader, Writer
from qkv.view.answers.requests import RequestHandler
from qkv.view.scene import Layer, Scene


def scene(**options: object) -> Scene:
    query, key, value = torch.randn(2, 6, 4), torch.randn(2, 9, 4), torch.randn(2, 9, 3)
    layer = Layer("one", "cross", "t", "s", query, key, value, options)
    return Scene("", {"t": tuple("abcdef"), "s": tuple("ghijklmno")}, (layer,))


@pytest.mark.parametrize("name", ["laplace", "Exponential"])
def test_flags_take_its_names(name: str) -> None:
    shown = succeeded(run("train", "translate", "--score", name, "--bandwidth", "2", "--print-config")).stdout
    model = tomllib.loads(shown)["model"]
    assert (model["score"], model["normalizer"], model["bandwidth"]) == ("laplace", "sum", 2.0)


def test_help_lists_it_and_a_misspelling_suggests_it() -> None:
    assert "laplace (exponential)" in " ".join(
        succeeded(run("train", "generate", "--help")).stdout.replace("│", " ").split()
    )
    refused(run("train", "translate", "--score", "laplaze", "--print-config"), '"laplace"')
    refused(run("train", "translate", "--score", "laplace", "--bandwidth", "0", "--print-config"), "above 0")


def test_explain_names_its_algorithm() -> None:
    shown = succeeded(run("explain", "--score", "laplace", "--queries", "512", "--keys", "512")).stdout
    assert "manhattan.rows" in shown


def test_attention_computes_it_and_stores_its_plan() -> None:
    query, key, value = torch.randn(3, 2, 4, 7, 5).unbind()
    output = qkv.attention(query, key, value, score=Laplace(2.0), backend="manhattan")
    torch.testing.assert_close(output, qkv.attention(query, key, value, score=Laplace(2.0), backend="reference"))
    arguments = Arguments(Laplace(2.0), None, None, None, 0.0, None, False)
    assert cache_key(query, key, value, arguments, None, "manhattan") in PLANS


def test_what_if_offers_it_with_its_range() -> None:
    page = RequestHandler(scene())
    offered = {one["name"]: one for one in page.ask("mechanisms", "layer=0&head=0").content["scores"]}
    (bandwidth,) = offered["laplace"]["parameters"]
    assert (bandwidth["name"], bandwidth["low"], bandwidth["high"]) == ("bandwidth", 0.5, 9.0)
    change = {"score": {"name": "laplace", "parameters": {"bandwidth": 3.0}}}
    found = page.ask("whatif", "", {"layer": 0, "head": 1, "query": 2} | change).content
    layer = page.scene.layers[0]
    expected = qkv.attention_with_weights(layer.query, layer.key, layer.value, score=Laplace(3.0))[1][1, 2]
    assert found["after"]["weights"] == pytest.approx(expected.tolist(), rel=1e-4)


def test_the_viewer_shows_its_equation_and_steps() -> None:
    page = RequestHandler(scene(score=Laplace(2.0)))
    assert "s = exp(−‖q−k‖₁/h)" in page.ask("scene", "").content["layers"][0]["equation"]
    recorded = page.ask("mechanisms", "layer=0&head=0").content["recorded"]["score"]
    assert recorded == {"name": "laplace", "parameters": {"bandwidth": 2.0}}
    stages = page.ask("steps", "layer=0&head=0&query=3").content["stages"]
    shown = next(stage for stage in stages if stage["symbol"] == "s")
    layer = page.scene.layers[0]
    assert shown["values"] == pytest.approx(Laplace(2.0)(layer.query[0, 3:4], layer.key[0])[0].tolist(), rel=1e-5)


def test_a_trace_file_holds_it() -> None:
    writer = Writer()
    plain = writer.plain(Laplace(torch.tensor([1.0, 2.0])))
    again = ValueReader(writer.tensors, "a file").value(plain)
    assert type(again) is Laplace
    assert torch.equal(torch.as_tensor(again.bandwidth), torch.tensor([1.0, 2.0]))


def test_a_module_learns_its_bandwidth() -> None:
    layer = MultiHeadAttention(16, heads=2, score="laplace")
    x = torch.randn(2, 7, 16)
    start_from_first_batch(layer, lambda: layer(x))
    assert isinstance(layer.score, KernelScore)
    layer(x).square().sum().backward()
    gradient = layer.score.log_bandwidth.grad
    assert gradient is not None
    assert bool(gradient.any())
    assert MechanismConfig(score="exponential").score_module(4, 4, heads=2).value().bandwidth.shape == (2,)  # type: ignore[attr-defined]


def test_a_module_starts_where_it_smooths_as_much_as_a_gaussian() -> None:
    score = KernelScore("laplace")
    score.start_from(4.0)
    assert score.value().bandwidth.item() == pytest.approx(4.0 * 0.8)


def test_regression_smooths_with_it() -> None:
    regression = pytest.importorskip("qkv.models.regression")
    x = np.linspace(0, 1, 20)[:, None]
    prediction = regression.KernelRegression("laplace", 0.5, degree=0).fit(x, x[:, 0]).predict([[0.3]])
    weights = np.exp(-np.abs(0.3 - x[:, 0]) / 0.5)
    assert math.isclose(prediction[0], (weights * x[:, 0]).sum() / weights.sum(), rel_tol=1e-9)


def test_the_command_and_the_help_of_regression_take_it() -> None:
    shown = succeeded(run("train", "regress", "--kernel", "laplace", "--print-config")).stdout
    assert tomllib.loads(shown)["model"]["kernel"] == "laplace"
    assert "boxcar, epanechnikov, triangular or laplace" in " ".join(
        succeeded(run("train", "regress", "--help")).stdout.replace("│", " ").split()
    )


def test_a_message_about_sums_names_it() -> None:
    with pytest.raises(qkv.QkvError) as raised:
        qkv.attention(*torch.randn(3, 2, 4), score=qkv.scores.Dot(), normalizer=qkv.normalizers.Sum())
    assert "Laplace" in str(raised.value)


def site() -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "_site" / "mechanisms.py"
    spec = importlib.util.spec_from_file_location("site_mechanisms", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_docs_have_its_row() -> None:
    (row,) = (line for line in site().TABLES["scores"][1]().splitlines() if "laplace" in line)
    assert row == "| `laplace`, `exponential` | exp(−‖q−k‖₁/h) | heavy tails |"
    assert r"$\exp(-\lVert q-k\rVert_1/h)$" in site().classes(qkv.scores.catalog.SCORES, "laplace")

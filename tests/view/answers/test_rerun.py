"""The answer of the whole model with changed heads, judged by the model itself."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import qkv
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, UnsupportedError
from qkv.models.language_model import DecoderConfig, LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.reader import MaskedLanguageModel
from qkv.nn.blocks import NormParts
from qkv.recording.recorder import record
from qkv.scores.products import Cosine
from qkv.tasks.rerunning import with_answers
from qkv.tasks.text_attention import read_scene
from qkv.view.answers.requests import RequestHandler
from qkv.view.scene import ModelAnswer

IDS = torch.tensor([[3, 4, 5, 6, 7]])


@pytest.fixture(scope="module")
def asked() -> tuple[LanguageModel, Any, RequestHandler, list[str]]:
    torch.manual_seed(0)
    model = LanguageModel(DecoderConfig(size=20, width=16, heads=2, layers=2)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    with torch.no_grad(), record(model) as trace:
        model(IDS)

    def answer() -> ModelAnswer:
        scores = model(IDS)[0]
        return ModelAnswer(f"{int(scores[-1].argmax())}", tuple("abcde"), scores.softmax(-1), str)

    scene = with_answers(trace.scene(0), model, trace, answer)
    return model, trace, RequestHandler(scene), trace.layers


@pytest.mark.parametrize("scope", ["head", "layer", "model"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"output": "zero"}, "zero"),
        ({"output": "mean"}, "mean"),
        ({"score": {"name": "cosine"}}, ("mechanism", {"score": Cosine()})),
        (
            {"mask": {"name": "window", "parameters": {"left": 1, "right": 0}}},
            ("mechanism", {"mask": qkv.masks.window(1, 0)}),
        ),
        ({"temperature": 2.0}, ("mechanism", {"score": lambda q, k: q @ k.mT / 8**0.5 / 2})),
    ],
)
def test_the_answer_is_that_of_the_changed_model(
    asked: Any, scope: str, change: Mapping[str, Any], expected: Any
) -> None:
    model, trace, handler, layers = asked
    found = handler.ask("rerun", "", {"layer": 1, "head": 1, "scope": scope, **change}).content
    expected = ("mean", trace) if expected == "mean" else expected
    of_layer: Any = {1: expected} if scope == "head" else expected
    with torch.no_grad():
        before = model(IDS)[0].softmax(-1)
        with qkv.patch(model, dict.fromkeys(layers if scope == "model" else [layers[1]], of_layer)):
            after = model(IDS)[0].softmax(-1)
    assert found["before"] == str(int(before[-1].argmax()))
    assert found["after"] == str(int(after[-1].argmax()))
    moved = [row["moved"] for row in found["rows"]]
    assert moved == pytest.approx(((after - before).abs().sum(-1) / 2).tolist(), abs=1e-6)
    assert max(moved) > 1e-4
    best = found["rows"][2]["after"][0]
    assert int(best["name"]) == int(after[2].argmax())
    assert (best["before"], best["after"]) == pytest.approx(
        (float(before[2, int(best["name"])]), float(after[2].max()))
    )
    assert [row["label"] for row in found["rows"]] == [*"abcde"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"scope": "planet"}, ConfigError),
        ({"scope": "head", "output": "half"}, ConfigError),
        ({"scope": "head", "vector": [1.0]}, ConfigError),
        ({"scope": "head", "head": 2}, ConfigError),
        ({"scope": "head", "normalizer": {"name": "sum"}}, UnsupportedError),
    ],
)
def test_what_is_no_change_is_refused(asked: Any, change: Mapping[str, Any], error: type[Exception]) -> None:
    model, _, handler, _ = asked
    with pytest.raises(error):
        handler.ask("rerun", "", {"layer": 1, "head": 1, **change})
    assert not any(module._forward_hooks for module in model.modules())


def test_a_scene_without_its_model_says_so(asked: Any) -> None:
    _, trace, handler, _ = asked
    assert handler.ask("scene", "").content["answers"]
    recorded = RequestHandler(trace.scene(0))
    assert not recorded.ask("scene", "").content["answers"]
    with pytest.raises(UnsupportedError, match="a scene of a model"):
        recorded.ask("rerun", "", {"layer": 1, "head": 1, "scope": "head", "output": "zero"})


@pytest.mark.parametrize("text", [None, "Die alte Frau hat einen Hund ."])
def test_the_packaged_translator_answers(text: str | None) -> None:
    translator = qkv.load("example")
    scene = translator.scene(text or "Ein Hund schläft .")
    assert scene.rerun is not None
    answer = scene.rerun({})
    assert answer.text == " ".join(token for token in scene.sequences["target"][:-1])
    best = [answer.name(int(row.argmax())) for row in answer.probabilities]
    assert best == list(scene.sequences["target"])
    silent = scene.rerun({layer.name: dict.fromkeys(range(layer.heads), "zero") for layer in scene.layers})
    assert silent.text != answer.text


@pytest.mark.parametrize(("headed", "answers"), [(True, True), (False, False)])
def test_a_model_without_an_output_layer_has_no_answer(headed: bool, answers: bool) -> None:
    """The folder of an encoder alone gives states, which are no scores of tokens."""
    parts = TransformerParts(300, 16, 8, 2, 2, 32, 2, kinds=2, masked_head=headed, norms=NormParts(place="after"))
    tokenizer = Tokenizer.learn(["a dog runs"], size=300)
    loaded = SimpleNamespace(model=MaskedLanguageModel(parts).eval(), tokenizer=tokenizer)
    scene = read_scene(loaded, [4, 5, 6], "a dog")
    assert (scene.rerun is not None) == answers
    if scene.rerun is not None:
        answer = scene.rerun({})
        assert answer.probabilities.shape == (3, 300)
        assert answer.labels == tuple(tokenizer.pieces([4, 5, 6]))

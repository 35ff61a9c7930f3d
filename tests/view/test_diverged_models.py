"""A part of a model with NaN or infinity in it: recorded, saved and shown, with the first layer that it reaches."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qkv
from qkv.errors import DataError
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.configs.translator import TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.reader import TextClassifier
from qkv.models.translator import TransformerTranslator
from qkv.view.answers.answer import Numbers
from qkv.view.answers.opening import first_shown, mean_rows
from qkv.view.answers.requests import RequestHandler
from qkv.view.not_finite import first_not_finite

TOKENS = torch.tensor([[4, 7, 5, 9, 6]])
LENGTHS = torch.tensor([5])
SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20}


def translator() -> nn.Module:
    sizes = {"size": 20, "width": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 2}
    return TransformerTranslator(TransformerConfig(**sizes))


def language_model() -> nn.Module:
    return LanguageModel(DecoderConfig(size=20, width=8, heads=2, layers=2, feed_forward=8))


def classifier() -> nn.Module:
    return TextClassifier(ClassifierConfig(size=20, labels=2, model="transformer", width=8, heads=2), 3)


def attached(config: str, model: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        settings = SMALL | ({"num_key_value_heads": 1} if config == "LlamaConfig" else {})
        return qkv.hub.attach(getattr(transformers, model)(getattr(transformers, config)(**settings)).eval())

    return build


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "translator": (translator, lambda model: model(TOKENS, LENGTHS, TOKENS[:, :3])),
    "language model": (language_model, lambda model: model(TOKENS)),
    "classifier": (classifier, lambda model: model(TOKENS, LENGTHS)),
    "Llama": (attached("LlamaConfig", "LlamaForCausalLM"), lambda model: model(TOKENS)),
    "BERT": (attached("BertConfig", "BertModel"), lambda model: model(TOKENS)),
}
PARTS = [
    pytest.param(name, share, marks=[] if share == 4 or (name, share) == ("translator", 0) else [pytest.mark.slow])
    for name in MODELS
    for share in range(9)
]
"""Of each model a part in the middle, and of one the first."""


@pytest.mark.parametrize(("name", "eighth"), PARTS)
def test_a_part_that_diverged_is_named_everywhere(name: str, eighth: int, tmp_path: Path) -> None:
    build, forward = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    parts = [part for part in model.modules() if part._parameters]
    weight = next(iter(parts[eighth * (len(parts) - 1) // 8]._parameters.values()))
    assert weight is not None
    number = (math.nan, math.inf)[eighth % 2]
    with torch.no_grad():
        weight.view(-1)[weight.numel() // 2 :] = number
        with qkv.record(model) as trace:
            forward(model)
    scene = trace.scene(0)
    reached = [
        layer.name
        for layer in scene.layers
        if not all(bool(side.isfinite().all()) for side in (layer.query, layer.key, layer.value))
    ]
    first = first_not_finite(scene)
    assert ([] if first is None else [scene.layers[first.layer].name]) == reached[:1]
    trace.save(tmp_path / "trace.safetensors")
    qkv.recording.read(tmp_path / "trace.safetensors").save(tmp_path / "trace.html")
    page = (tmp_path / "trace.html").read_text(encoding="utf-8")
    assert len(page) > 10_000
    if mean_rows(scene.layers[first_shown(scene)[0]]).isfinite().all():  # a value spoils no weight, nor tanh(∞)
        trace.save(tmp_path / "trace.svg")
    else:
        with pytest.raises(DataError) as caught:
            trace.save(tmp_path / "trace.svg")
        assert f"layer {reached[0]}," in caught.value.got
    handler = RequestHandler(scene)
    asked = [("scene", ""), ("heads", "")]
    for number, layer in enumerate(scene.layers):
        for head in (*range(layer.heads), *(["mean"] if layer.heads > 1 else [])):
            where = f"layer={number}&head={head}"
            asked += [("tile", f"{where}&level=0&row=0&column=0&how=mean&quantity=weight")]
            asked += [("cell", f"{where}&query={query}&key=0") for query in range(layer.shape[1])]
            asked += [("steps", f"{where}&query={query}") for query in range(layer.shape[1]) if head != "mean"]
    for kind, parameters in asked:
        answer = handler.ask(kind, parameters)
        if isinstance(answer, Numbers):
            assert math.isfinite(answer.low + answer.high)
        else:
            json.dumps(answer.content, allow_nan=False)
    handler.close()

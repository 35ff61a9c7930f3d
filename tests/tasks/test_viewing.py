"""From a trained model and a text to a scene: tokens, layers and refusals."""

from pathlib import Path

import pytest
import torch

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.multihead import MultiHeadAttention
from qkv.recording.recorder import record
from qkv.tasks import viewing
from qkv.tasks.generate.predict import Generator
from qkv.tasks.translate.predict import Translator

TOKENIZER = Tokenizer.learn(["abcdefgh"], "char")


def translator(kind):
    torch.manual_seed(0)
    if kind == "gru":
        return Translator(RecurrentTranslator(RecurrentConfig(size=TOKENIZER.size, embedding=8, hidden=8)), TOKENIZER)
    sizes = {"width": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 1}
    return Translator(TransformerTranslator(TransformerConfig(size=TOKENIZER.size, **sizes)), TOKENIZER)


@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_a_translation_shows_the_weights_that_it_was_made_with(kind):
    model = translator(kind)
    scene = model.scene("abcx")
    assert scene.sequences["source"] == ("a", "b", "c", "<unk>")
    assert scene.notes["source"][-1] == "unknown"
    found = model.translate_fully(["abcx"], attention=True)[0]
    assert scene.sequences["target"] == found.target_tokens
    layer = next(layer for layer in scene.layers if layer.kind == "cross")
    torch.testing.assert_close(layer.map().dense().mean(0), found.weights, rtol=1e-4, atol=1e-6)


def test_a_language_model_reads_the_text():
    torch.manual_seed(0)
    config = DecoderConfig(size=TOKENIZER.size, width=8, heads=2, layers=2)
    model = Generator(LanguageModel(config), TOKENIZER)
    scene = model.scene("abcabc", tokens=5)
    assert scene.sequences == {"text": ("a", "b", "c", "a", "b")}
    assert [layer.shape for layer in scene.layers] == [(2, 5, 5)] * 2
    assert float(scene.layers[0].map()[0, 0, 1]) == 0


def test_a_model_without_attention_has_nothing_to_show():
    config = RecurrentConfig(size=TOKENIZER.size, embedding=8, hidden=8, score="none")
    model = Translator(RecurrentTranslator(config), TOKENIZER)
    with pytest.raises(ConfigError, match="attention"):
        model.scene("abc")


@pytest.mark.parametrize(("text", "expected"), [("", "at least one token"), ("a" * 300, "at most 256 tokens")])
def test_texts_that_cannot_be_read(text, expected):
    model = translator("gru")
    with pytest.raises(DataError, match=expected):
        model.scene(text)


def test_exactly_one_text(tmp_path):
    for text, file in ((None, None), ("a", tmp_path / "b")):
        with pytest.raises(ConfigError, match="text"):
            viewing.scene_of_command(Path("run"), text, file, None, "cpu")
    with pytest.raises(ConfigError, match="trace"):
        viewing.scene_of_command(Path("x.safetensors"), "a", None, None, "cpu")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for missing in (tmp_path / "none", tmp_path / "bytes"):
        with pytest.raises(DataError, match=missing.name):
            viewing.scene_of_command(Path("run"), None, missing, None, "cpu")


def test_a_trace_shows_what_was_recorded(tmp_path):
    torch.manual_seed(0)
    model = MultiHeadAttention(8, 2)
    with record(model) as trace:
        model(torch.randn(1, 3, 8))
    trace.save(tmp_path / "trace.safetensors")
    scene = viewing.scene_of_command(tmp_path / "trace.safetensors", None, None, None, "cpu")
    torch.testing.assert_close(scene.layers[0].map().dense(), trace.weights("attention")[0])
    assert len(scene.sequences["text"]) == 3

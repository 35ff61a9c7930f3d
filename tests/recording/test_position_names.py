"""Frames of audio and patches of images have names, by the configurations of real models."""

from types import SimpleNamespace

import pytest
import torch

import qkv
from qkv.recording import read
from qkv.recording.position_names import position_names


def recorded(model, *inputs, **named):
    model = qkv.hub.attach(model.eval())
    with torch.no_grad(), qkv.record(model) as trace:
        model(*inputs, **named)
    return trace


def test_patches_of_an_image_have_rows_and_columns(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, image_size=(32, 48), patch_size=16)
    trace = recorded(transformers.ViTModel(config), torch.randn(1, 3, 32, 48))
    expected = ("[CLS]", "1,1", "1,2", "1,3", "2,1", "2,2", "2,3")
    assert trace.scene().sequences["text"] == expected
    trace.save(tmp_path / "image.safetensors")
    assert read(tmp_path / "image.safetensors").scene().sequences["text"] == expected
    given = {"text": tuple("abcdefg")}
    assert trace.scene(tokens=given).sequences == given


def test_frames_of_audio_have_times_and_tokens_stay_tokens():
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    more = {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 20}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(**sizes, **more, **marks, num_mel_bins=8)
    trace = recorded(
        transformers.WhisperModel(config), torch.randn(1, 8, 3000), decoder_input_ids=torch.tensor([[1, 5, 6]])
    )
    sequences = trace.scene().sequences
    assert sequences["source"][:3] == ("0.00s", "0.02s", "0.04s")
    assert sequences["source"][-1] == "29.98s"
    assert sequences["target"] == ("0", "1", "2")


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, 5),
        ({"image_size": 32}, 5),
        ({"image_size": 32, "patch_size": 16}, 3),
        ({"image_size": 32, "patch_size": 16}, 50),
        ({"image_size": 32, "patch_size": 0}, 5),
        ({"model_type": "whisper", "max_source_positions": 1500}, 7),
    ],
)
def test_other_positions_have_no_names(config, count):
    assert position_names(SimpleNamespace(**config), count) is None


def test_registers_stand_between_the_class_token_and_the_patches():
    names = position_names(SimpleNamespace(image_size=[2, 4], patch_size=2), 5)
    assert names == ("[CLS]", "[REG1]", "[REG2]", "1,1", "1,2")
    assert position_names(SimpleNamespace(image_size=2, patch_size=1), 4) == ("1,1", "1,2", "2,1", "2,2")

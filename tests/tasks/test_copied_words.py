"""The viewer shows words beyond the vocabulary as themselves, and marks those that were copied."""

from pathlib import Path

import pytest

import qkv

_NAMES = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "dklmnrst"]


@pytest.mark.parametrize("model", ["gru", pytest.param("transformer", marks=pytest.mark.slow)])
def test_unknown_words_keep_their_names_and_copied_ones_are_marked(model: str, tmp_path: Path) -> None:
    pairs = [(f"call {name} now", f"{name} called") for name in _NAMES]
    settings = {"minimum": 50, "width": 32, "copy": "mixture", "label_smoothing": 0.0, "learning_rate": 5e-3}
    if model == "transformer":
        settings |= {"encoder_layers": 1, "decoder_layers": 1, "feed_forward": 64}
    run = qkv.train(
        "translate", out=tmp_path / "run", data=pairs, model=model, tokenizer="word", steps=60, quiet=True, **settings
    )
    translator = run.load()
    assert translator.translate(["call zorro now"]) == ["zorro called"]
    scene = translator.scene("call zorro now")
    assert tuple(scene.sequences["source"]) == ("call", "zorro", "now")
    assert tuple(scene.sequences["target"]) == ("zorro", "called", "<eos>")
    assert tuple(scene.notes["source"]) == ("", "unknown", "")
    assert tuple(scene.notes["target"]) == ("copied", "", "")

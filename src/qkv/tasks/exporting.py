"""Exporting a trained model for other programs."""

import os
from pathlib import Path

from torch import nn

from qkv.checkpoint.disk import expect_writable, replace_file, typed
from qkv.checkpoint.plain import Plain, encode
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, UnsupportedError, error_message, nearest
from qkv.hub.ctranslate import to_ctranslate2
from qkv.hub.onnx_graphs import Exportable, to_onnx
from qkv.models.transformer import TransformerTranslator
from qkv.tasks.decoding import usual_limit
from qkv.tasks.element_pointer import ElementPointer
from qkv.tasks.generator import Generator
from qkv.tasks.labeler import Classifier, Tagger
from qkv.tasks.load import load
from qkv.tasks.regressor import Regressor
from qkv.tasks.translator import Translator

TARGETS = ("ctranslate2", "onnx")
ABOUT = "about.json"
Loaded = Translator | Generator | Classifier | Tagger
_LEAST_POSITIONS = 1024
"""Minimum length of the table of sinusoids: CTranslate2 cannot go beyond its table."""


def export(run: str | Path, to: str, out: Path) -> list[str]:
    """Write a trained model, its tokenizer, and a description of both.

    Args:
        run: run folder, whose best checkpoint is used, or one checkpoint in it.
        to: "ctranslate2" or "onnx".
        out: a folder that does not exist yet.

    Returns:
        The names of the files in it.

    Raises:
        ConfigError: the target is unknown, the folder exists, or a library is not installed.
        UnsupportedError: the target does not support a part of the model.
        CheckpointError: the checkpoint is invalid, or the folder cannot be written.

    Example:
        >>> export("runs/de-en", "onx", Path("out"))
        Traceback (most recent call last):
        qkv.errors.ConfigError: --to: expected ctranslate2 or onnx; got 'onx'. Did you mean "onnx"?
    """
    if to not in TARGETS:
        raise ConfigError(error_message("--to", " or ".join(TARGETS), repr(to), nearest(to, TARGETS)))
    if os.path.lexists(out):
        raise ConfigError(error_message("--out", "a folder that does not exist yet", str(out), "Give another --out."))
    expect_writable(out)
    trained: Loaded = load(run)
    _expect_text(trained)
    with typed(out, "a writable folder"):
        if to == "onnx":
            _to_onnx(trained.model, out)
        else:
            _to_ctranslate2(trained, out)
    replace_file(out / "tokenizer.json", trained.tokenizer.to_json().encode())
    replace_file(out / ABOUT, encode(_about(trained), ABOUT))
    return sorted(path.name for path in out.iterdir())


def _expect_text(trained: object) -> None:
    """Refuse models that read no text: the other programs have no input for them."""
    if isinstance(trained, ElementPointer | Regressor):
        got = "a pointer network" if isinstance(trained, ElementPointer) else "a regression"
        hint = "Use qkv.load(RUN) in Python, or the model's own command."
        raise UnsupportedError(error_message("--to", "a model that reads text and writes scores", got, hint))


def _to_onnx(model: nn.Module, out: Path) -> None:
    if not isinstance(model, Exportable):
        hint = "Train with --model transformer, without --copy."
        raise UnsupportedError(
            error_message("--to", "a model that can be exported to ONNX", type(model).__name__, hint)
        )
    to_onnx(model, out)


def _to_ctranslate2(trained: Loaded, out: Path) -> None:
    model, tokenizer = trained.model, trained.tokenizer
    if not isinstance(trained, Translator) or not isinstance(model, TransformerTranslator):
        hint = "Export it to ONNX." if isinstance(model, Exportable) else "Train with --model transformer, no --copy."
        raise UnsupportedError(error_message("--to", "a translation Transformer", type(model).__name__, hint))
    positions = max(_LEAST_POSITIONS, usual_limit(trained.longest))
    to_ctranslate2(model, tokenizer.vocabulary.pieces, out, **_marks(tokenizer), positions=positions)


def _about(trained: Loaded) -> dict[str, Plain]:
    longest = trained.model.config.context if isinstance(trained, Generator) else trained.longest
    labels = trained.labels if isinstance(trained, Classifier | Tagger) else ()
    return {**_marks(trained.tokenizer), "longest": longest, "labels": list(labels)}


def _marks(tokenizer: Tokenizer) -> dict[str, int]:
    return {"bos": tokenizer.bos, "eos": tokenizer.eos, "unk": tokenizer.unk}

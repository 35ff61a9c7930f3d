"""Exporting a trained model for other programs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from qkv.checkpoint.disk import expect_writable, new_folder, write_file
from qkv.checkpoint.json_values import JsonValue, encode
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, UnsupportedError, expect_name, setting
from qkv.files import absolute, as_path, read_file
from qkv.hub.ctranslate import to_ctranslate2
from qkv.hub.ctranslate_check import convert, expect_same
from qkv.hub.families.library_tokenizer import plain_files
from qkv.hub.families.save import files_of
from qkv.hub.onnx_graphs import Exportable, to_onnx
from qkv.models.language_model import LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.models.translator import TransformerTranslator
from qkv.tasks.load import load
from qkv.tasks.members import expect_single
from qkv.tasks.task import TextAnswerer

TARGETS = ("ctranslate2", "onnx", "transformers")
ABOUT, ANSWER = "about.json", "answer.py"
_SCRIPTS, _MOST_BYTES = Path(__file__).parents[1] / "hub" / "answers", 1 << 20
_LEAST_POSITIONS = 1024
"""Minimum length of the table of sinusoids: CTranslate2 cannot go beyond its table."""


def export(run: str | Path, to: str, out: Path) -> list[str]:
    """Write a trained model, its tokenizer, a description of both, and a script that answers with them.

    Args:
        run: run folder, whose best checkpoint is used, or one checkpoint in it.
        to: "ctranslate2", "onnx" or "transformers".
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
        qkv.errors.ConfigError: to: expected "ctranslate2", "onnx" or "transformers"; got "onx". Did you mean "onnx"?
    """
    expect_name(setting("to"), to, TARGETS)
    if out.suffix == ".onnx":
        hint = "A model is several files; for example " + setting("out") + f" {out.with_suffix('')}-onnx."
        raise ConfigError(setting("out"), "the name of a folder", f"that of a file, {out.name}", hint)
    if os.path.lexists(out):
        raise ConfigError(
            setting("out"), "a folder that does not exist yet", str(out), "Give another " + setting("out") + "."
        )
    expect_writable(out)
    expect_single(as_path(run, "run"))
    trained = load(run)
    if not isinstance(trained, TextAnswerer):
        hint = "Use qkv.load(RUN) in Python, or the model's own command."
        raise UnsupportedError(setting("to"), "a model that reads text", f"a {type(trained).__name__}", hint)
    facts = trained.export_facts(to)
    with new_folder(absolute(out)) as temporary:
        if to == "onnx":
            _to_onnx(trained.model, temporary)
        elif to == "ctranslate2":
            _to_ctranslate2(trained, facts, temporary)
        files = files_of(trained) if to == "transformers" else plain_files(trained.tokenizer)
        for name, content in {**files, ABOUT: encode(_about(trained.tokenizer, facts), ABOUT)}.items():
            write_file(temporary / name, content)
        script = _SCRIPTS / f"{to}-{facts.get('task')}.txt"
        if script.is_file():  # there is none for a task of the user's own
            write_file(temporary / ANSWER, read_file(script, _MOST_BYTES))
    return sorted(path.name for path in out.iterdir())


def _to_onnx(model: nn.Module, out: Path) -> None:
    if not isinstance(model, Exportable):
        recurrent = (
            "Train with " + setting("model", "transformer") + "." if isinstance(model, RecurrentLanguageModel) else ""
        )
        hint = recurrent or "Train without " + setting("copy") + ", and with " + setting("alignment", "soft") + "."
        raise UnsupportedError(setting("to"), "a model that can be exported to ONNX", type(model).__name__, hint)
    to_onnx(model, out)


def _to_ctranslate2(trained: TextAnswerer, facts: Mapping[str, Any], out: Path) -> None:
    model, tokenizer = trained.model, trained.tokenizer
    parts = getattr(model, "parts", None)
    is_published = isinstance(parts, TransformerParts) and bool(parts.settings)
    if is_published and isinstance(model, LanguageModel | TransformerTranslator):
        convert(model, tokenizer, out, _alignment_head(facts))
        return
    if not isinstance(model, TransformerTranslator):
        hint = "Train with " + setting("model", "transformer") + ", no " + setting("copy") + "."
        if is_published:
            hint = "Use " + setting("to", "transformers") + "."
        elif isinstance(model, Exportable):
            hint = "Export it to ONNX."
        raise UnsupportedError(setting("to"), "a translation Transformer", type(model).__name__, hint)
    to_ctranslate2(
        model,
        tokenizer.vocabulary.pieces,
        out,
        source_pieces=tokenizer.source.vocabulary.pieces,
        **_special_tokens(tokenizer),
        positions=max(_LEAST_POSITIONS, facts["longest_answer"]),
        alignment=_alignment_head(facts),
    )
    expect_same(model, tokenizer, out)


def _alignment_head(facts: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the layer of a decoder, and the head in it, that align words; None for the mean of heads."""
    if "alignment" not in facts:
        return -1, None
    _, layer, *_ = facts["alignment"]["layer"].split(".")
    return int(layer), facts["alignment"]["head"]


def _about(tokenizer: Tokenizer, facts: Mapping[str, Any]) -> dict[str, JsonValue]:
    source = "tokenizer.json" if tokenizer.shared else "source_tokenizer.json"
    return {
        **_special_tokens(tokenizer),
        "ends": [tokenizer.eos, *tokenizer.other_ends],
        "never_written": list(tokenizer.never_written),
        "forced": [tokenizer.imported.forced]
        if tokenizer.imported is not None and tokenizer.imported.forced >= 0
        else [],
        "tokenizers": [source, "tokenizer.json"],
        **facts,
    }


def _special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    return {"bos": tokenizer.bos, "eos": tokenizer.eos, "unk": tokenizer.unk}

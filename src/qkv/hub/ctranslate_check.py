"""Converting published models by CTranslate2's own converter, and comparing what CTranslate2 computes with the model.

The converter reads a folder of `transformers` and knows most of its families; what it does not know of a family it
leaves out without a message. So no model leaves unless CTranslate2 gives the same numbers.
"""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from qkv.data.batches import device_of
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, UnsupportedError, expect_enough_memory, setting
from qkv.files import read_file
from qkv.hub.ctranslate import return_heads
from qkv.hub.families.save import save
from qkv.models.language_model import LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.translator import TransformerTranslator
from qkv.strict_json import parse_json
from qkv.system import remove_tree

_TEXTS, _LENGTH, _LONGEST = 2, 160, 1024
"""How many texts are compared; their tokens, more than distances that are told apart; the most for a longer window."""
_MOST_BYTES = 1 << 30
"""The largest vocabulary that is read."""
_DIFFERENCE = 1e-4
"""Largest difference, as a share of the largest number: float32 rounds to 1e-6, other equations differ by 1e-3."""

_HINT = "Use " + setting("to", "transformers") + ", and run it with transformers."


def convert(
    model: LanguageModel | TransformerTranslator,
    tokenizer: Tokenizer,
    out: Path,
    alignment: tuple[int, int | None] = (-1, None),
) -> None:
    """Convert a published model by CTranslate2's own converter.

    Args:
        model: a model that was read from a folder of `transformers`, fine-tuned or not.
        tokenizer: its tokenizer, which names the ids.
        out: the output folder, which exists.
        alignment: of a translator, see `to_ctranslate2`.

    Raises:
        ConfigError: CTranslate2 or transformers is not installed.
        UnsupportedError: the converter refuses the model, or it would compute another one.
    """
    source, converted = out / "source", out / "converted"
    save(model, source)
    converter = _converter(model, tokenizer, alignment)(str(source))
    try:
        with _silent_transformers():
            converter.convert(str(converted))
    except Exception as error:  # of whatever kind: its loaders meet settings that they do not know
        raise _refused(f"{type(error).__name__}: {error}") from error
    remove_tree(source)
    for path in [*converted.iterdir()]:
        path.rename(out / path.name)
    converted.rmdir()
    expect_same(model, tokenizer, out)


def expect_same(model: LanguageModel | TransformerTranslator, tokenizer: Tokenizer, folder: Path) -> None:
    """Check that CTranslate2 computes with a converted folder what the model computes.

    Logits of a language model, or log-probabilities of given targets of a translator, are compared, for texts of random
    tokens that are longer than each window.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        folder: the converted folder.

    Raises:
        UnsupportedError: the numbers differ, or it computes none.
    """
    compare = _compare_logits if isinstance(model, LanguageModel) else _compare_targets
    threads = torch.get_num_threads()
    try:
        ours, theirs = compare(model, tokenizer, folder)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as error:
        raise _refused(f"{type(error).__name__}: {error}") from error
    finally:
        torch.set_num_threads(threads)  # both may use one OpenMP, whose threads CTranslate2 4.8.5 sets as it likes
    difference = float((ours - theirs).abs().max() / ours.abs().max())
    if not difference <= _DIFFERENCE:
        raise _refused(f"another one: its numbers differ by {difference:.1g} of the largest")


def _compare_logits(model: LanguageModel, tokenizer: Tokenizer, folder: Path) -> tuple[Tensor, Tensor]:
    """Return the logits of both, (B, T, N)."""
    import ctranslate2

    ids = _random_ids(model, tokenizer, tokenizer.size)
    with torch.no_grad():
        ours = model(torch.tensor(ids, device=device_of(model))).float().cpu()
    theirs = torch.from_numpy(np.array(ctranslate2.Generator(str(folder)).forward_batch(ids)))
    return ours, theirs[..., : ours.shape[-1]]


def _compare_targets(model: TransformerTranslator, tokenizer: Tokenizer, folder: Path) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of given targets after given sources by both, (B, T)."""
    import ctranslate2

    names = [_pieces(folder, side) for side in ("source", "target")]
    sources, targets = (
        _random_ids(model, side, len(pieces)) for side, pieces in zip((tokenizer.source, tokenizer), names, strict=True)
    )
    device = device_of(model)
    source, target = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
    lengths = torch.full((len(source),), source.shape[1], device=device)
    before = nn.functional.pad(target[:, :-1], (1, 0), value=tokenizer.bos)
    with torch.no_grad():
        # The converter of Marian leaves out padding, the last id.
        logits = model(source, lengths, before)[..., : len(names[1])].float()
    ours = logits.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1).cpu()
    texts, references = (
        [[pieces[number] for number in ids] for ids in rows]
        for pieces, rows in zip(names, (sources, targets), strict=True)
    )
    scores = ctranslate2.Translator(str(folder)).score_batch(texts, references)
    theirs = [score.log_probs[: len(ids)] for score, ids in zip(scores, targets, strict=True)]
    return ours, torch.tensor(theirs, device="cpu")


def _random_ids(model: nn.Module, tokenizer: Tokenizer, size: int) -> list[list[int]]:
    """Draw texts of ordinary tokens, longer than each window if the context allows, a begin token before them too."""
    parts = model.parts
    assert isinstance(parts, TransformerParts)
    length = max(_LENGTH, (parts.window or 0) + 8)
    if length > _LONGEST:
        expected = f"a window of at most {_LONGEST - 8:,} tokens, beyond which no text is compared"
        raise UnsupportedError(setting("to"), expected, f"one of {parts.window:,}", _HINT)
    special = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, *tokenizer.never_written}
    ordinary = [number for number in range(min(size, tokenizer.size)) if number not in special]
    draws = random.Random(0)
    return [draws.choices(ordinary, k=min(length, parts.context - 1)) for _ in range(_TEXTS)]


def _pieces(folder: Path, side: str) -> list[str]:
    """Return the vocabulary of one side, as CTranslate2 stored it."""
    shared = folder / "shared_vocabulary.json"
    path = shared if shared.exists() else folder / f"{side}_vocabulary.json"
    pieces: list[str] = parse_json(read_file(path, _MOST_BYTES))
    return pieces


def _converter(
    model: LanguageModel | TransformerTranslator, tokenizer: Tokenizer, alignment: tuple[int, int | None]
) -> Any:
    """Return CTranslate2's converter; it names the ids by our tokenizer, which needs no other library."""
    try:
        import transformers
        from ctranslate2.converters import TransformersConverter
    except ImportError as error:
        expect_enough_memory(error)
        hint = "Install both: in the checkout, pip install '.[export,hub]'."
        raise ConfigError(setting("to"), "installed libraries", f"ctranslate2 or transformers: {error}", hint) from None
    pieces = tokenizer.vocabulary.pieces if tokenizer.imported is None else tokenizer.imported.names()
    special_tokens = {"bos": tokenizer.bos, "eos": tokenizer.eos, "unk": tokenizer.unk, "pad": tokenizer.pad}
    # The format has no place for a model without one of them.
    marks = {f"{name}_token": pieces[max(number, 0)] for name, number in special_tokens.items()}
    ids = {piece: number for number, piece in enumerate(pieces)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=marks["unk_token"]))

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, tokenizer_class: Any, model_name_or_path: str, **options: Any) -> Any:
            return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks)

        def _load(self) -> Any:
            spec = super()._load()
            if isinstance(model, TransformerTranslator):
                return_heads(spec.decoder, alignment, model.parts.heads)
            return spec

    return Converter


@contextmanager
def _silent_transformers() -> Iterator[None]:
    """Convert without the progress bars and warnings of transformers."""
    from transformers.utils import logging

    verbosity, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shows:
            logging.enable_progress_bar()


def _refused(got: str) -> UnsupportedError:
    return UnsupportedError(setting("to"), "a model that CTranslate2 converts to the same model", got, _HINT)

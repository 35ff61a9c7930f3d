"""A trained run as a page that computes: its model, its tokenizer, and how its answers change with weights of int8."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.data.phrases import generate
from qkv.data.segments import SPECIALS
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, setting
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.encoders import SelfAttentionEncoder
from qkv.models.language_model import LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.reader import TextClassifier
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.example_run import SENTENCES, is_example
from qkv.tasks.generate.predict import Generator
from qkv.tasks.load import load
from qkv.tasks.members import expect_single
from qkv.tasks.text_attention import expect_attention
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.settings import MORE_TOKENS, TOKENS_PER_SOURCE_TOKEN
from qkv.tasks.viewing import text_of
from qkv.view.answers.opening import first_shown
from qkv.view.live import LiveModel, LivePage, Network, lacks, live_page, rounded_to_int8

CHECKED = 200
"""Maximum number of texts whose answers are compared with those of the weights before rounding."""
_SHOWN = 4
"""Maximum number of examples that the page offers."""
_WRITTEN = 20
"""Tokens of a language model's continuation that are compared."""
_DEFAULTS = "Train with the defaults."

Live = Translator | Generator | Classifier


def live(loaded: Any, texts: Sequence[str], *, title: str = "") -> LivePage:
    """Build a page that runs a trained model in any browser, offline: type a text, and the model answers.

    All views of `qkv view` and what-if work on it. It has the weights of the model, as int8: whoever has the page has
    the model.

    Args:
        loaded: a translator, a language model or a classifier, from `qkv.load`.
        texts: examples, the first of which is shown first; up to 200 of them are answered with the weights before and
            after rounding, and the page says how many answers differ.
        title: the name of the page.

    Returns:
        The page: a notebook shows it, `save` writes it.

    Raises:
        UnsupportedError: the model has a part that a page cannot compute; the message names it.
        ConfigError: there is no text, the model has no attention, or the page would be larger than 50 MB.
        DataError: a text is too long for the model.

    Example:
        >>> import qkv
        >>> page = qkv.live(qkv.load("example"), ["Der Hund schläft ."])
        >>> page.checked, page.differ, "DecompressionStream" in page.text
        (1, 0, True)
    """
    checked = list(dict.fromkeys(text for text in texts if text.strip()))[:CHECKED]
    if not checked:
        hint = "Give " + setting("text") + " or " + setting("file") + ", with one text a line."
        raise ConfigError(setting("live"), "a text to open on", "none", hint)
    expect_attention(loaded.model)
    rounded, model = page_weights(loaded)
    before, after = (answers(run, checked) for run in (loaded, rounded))
    differ = sum(one != other for one, other in zip(before, after, strict=True))
    scene = rounded.scene(checked[0])
    number, head = first_shown(scene)
    opening = scene.layers[number].name, head
    page = model._replace(differ=differ, checked=len(checked), opening=opening)
    return LivePage(live_page(page, tuple(checked[:_SHOWN]), title), title or "qkv", len(checked), differ)


def write_live_page(run: Path, path: Path, text: str | None, file: Path | None, device: str) -> str:
    """Write the page of a run.

    Args:
        run: run folder.
        path: the file to write.
        text, file: examples: one text, a file of one text a line, or both; the packaged run has its own.
        device: compute device.

    Returns:
        A sentence that describes the file.

    Raises:
        ConfigError: there is no text; others as for `live`.
        QkvError: as for `qkv.load`.
    """
    texts = [] if text is None else [text]
    if file is not None:
        texts += [line for line in text_of(file).split("\n") if line.strip()][:CHECKED]
    if is_example(run):
        texts = list(dict.fromkeys([*(texts or SENTENCES), *(pair.source for pair in generate(CHECKED, seed=1))]))
    expect_single(run)
    page = live(load(run, device), texts, title=run.name)
    page.save(path)
    return f"{path}: a page that computes, {len(page.text) / 1e6:.1f} MB. Whoever has it has the model's weights."


def page_weights(loaded: Any) -> tuple[Any, LiveModel]:
    """Return a run with the weights of its page, and what the page needs.

    Args:
        loaded: what `qkv.load` returns.

    Raises:
        UnsupportedError: the model has a part that a page cannot compute.
    """
    labels: tuple[str, ...] = ()
    rounded: Any = rounded_to_int8(loaded.model)
    if isinstance(loaded, Translator):
        if len(loaded.models) > 1 or loaded.right_to_left[0] or loaded.table is not None:
            raise lacks("an ensemble, columns or text from right to left", "Give one run that reads plain lines.")
        limits: Any = {"chosen": loaded.chosen, "limit": loaded.limit}
        made: Any = Translator(rounded, loaded.tokenizer, loaded.longest, **limits)
        parts, longest = _translator_parts(made), loaded.longest
    elif isinstance(loaded, Generator):
        made = Generator(rounded, loaded.tokenizer)
        parts, longest = _language_model_parts(made.model), loaded.model.config.context
    elif isinstance(loaded, Classifier) and isinstance(loaded.model, TextClassifier):
        made = Classifier(rounded, loaded.tokenizer, loaded.labels, loaded.longest)
        parts, longest, labels = _classifier_parts(made.model), loaded.longest, loaded.labels
    else:
        raise lacks(f"a {type(loaded).__name__}", "Give a run that translates, writes or classifies text.")
    tokenizer: Tokenizer = loaded.tokenizer
    tokenizers = {
        "source": _vocabulary(tokenizer.source),
        "target": None if tokenizer.shared else _vocabulary(tokenizer),
    }
    marks: dict[str, Any] = {"bos": tokenizer.bos, "eos": tokenizer.eos, "never": list(tokenizer.never_written)}
    if isinstance(made, Generator):
        marks["never"] = list(range(len(SPECIALS)))
    network = Network(made.model)
    page = LiveModel(network, parts | {"marks": marks}, tokenizers, labels, longest, 0, 0, ("", None))
    return made, page


def answers(loaded: Live, texts: Sequence[str]) -> list[str]:
    """Return what a run answers: translations, the likeliest continuations, or labels."""
    if isinstance(loaded, Translator):
        return [translation.text for translation in loaded.translate_fully(texts)]
    if isinstance(loaded, Classifier):
        return loaded.classify(texts)
    return loaded.generate(texts, tokens=_WRITTEN, temperature=0)


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    if tokenizer.imported is not None or tokenizer.kind == "unigram":
        raise lacks(f"a {tokenizer.kind} tokenizer", "Train with " + setting("tokenizer", "bpe") + ".")
    vocabulary = tokenizer.vocabulary
    names = ("kind", "lowercase", "unicode", "pieces")
    merges = [" ".join(pair) for pair in vocabulary.merges]
    return {name: getattr(vocabulary, name) for name in names} | {"merges": merges}


def _embedding(name: str, scale: float, positions: str, learned: str = "positions") -> dict[str, Any]:
    added = {"sinusoidal": "sinusoidal", "learned": learned}.get(positions, "none")
    return {"embed": name, "scale": scale, "positions": added}


def _stack(name: str, blocks: int, parts: TransformerParts) -> dict[str, Any]:
    if parts.gated or parts.norms.kind != "layer" or parts.norms.place not in ("before", "after"):
        raise lacks("the blocks of a published model", _DEFAULTS)
    place, activation = parts.norms.place, parts.activation
    return {"name": name, "blocks": blocks, "place": place, "activation": activation, "window": parts.window}


def _encoder(
    embedding: dict[str, Any], norm: str, *, stack: dict[str, Any] | None = None, cells: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"embedding": embedding, "norm": norm, "residual": False, "stack": stack, "cells": cells}


def _translator_parts(translator: Translator) -> dict[str, Any]:
    model = translator.model
    if isinstance(model, TransformerTranslator) and isinstance(model.config, TransformerConfig):
        parts = _transformer_translator(model)
    elif isinstance(model, RecurrentTranslator):
        parts = _recurrent_translator(model)
    else:
        raise lacks(f"a {type(model).__name__}", "Train without " + setting("copy") + " and monotonic alignments.")
    longest = translator.limit.to_json_value()
    limit = {"each": TOKENS_PER_SOURCE_TOKEN, "more": MORE_TOKENS, "longest": longest}
    return parts | {"task": "translate", "pool": None, "limit": limit}


def _source_embedding(model: TransformerTranslator | RecurrentTranslator) -> str:
    return "embed" if model.embed_source is None else "embed_source"


def _transformer_translator(model: TransformerTranslator) -> dict[str, Any]:
    parts, source = model.parts, _source_embedding(model)
    if parts.features_mark is not None:
        raise lacks("separate features", _DEFAULTS)
    if parts.recurrent is not None:
        cells = {"name": "encoder.layer", "cell": parts.recurrent, "layers": parts.layers}
        encoder = _encoder(_embedding(source, 1.0, "none"), "encoder_norm", cells=cells)
    else:
        embedding = _embedding(source, parts.embed_scale, parts.positions.kind)
        encoder = _encoder(embedding, "encoder_norm", stack=_stack("encoder", parts.layers, parts))
    return {
        "encoder": encoder,
        "embedding": _embedding("embed", parts.embed_scale, parts.positions.kind),
        "stack": _stack("decoder", parts.decoder_layers, parts),
        "norm": "decoder_norm",
    }


def _recurrent_translator(model: RecurrentTranslator) -> dict[str, Any]:
    config: RecurrentConfig = model.config
    if config.features_mark is not None or model.head_values is not None:
        raise lacks("separate features or several heads of a location", _DEFAULTS)
    source = _source_embedding(model)
    if isinstance(model.encoder, SelfAttentionEncoder):
        embedding = _embedding(source, config.embedding**0.5, config.positions or "sinusoidal")
        stack = {"name": "encoder.blocks", "blocks": config.encoder_layers, "place": "before"}
        stack |= {"activation": "relu", "window": config.window}
        encoder = _encoder(embedding, "encoder.norm", stack=stack)
    else:
        cells = {"name": "encoder", "cell": config.encoder or config.model, "layers": config.encoder_layers}
        encoder = _encoder(_embedding(source, 1.0, "none"), "", cells=cells)
    decoder = {
        "cell": config.model,
        "layers": config.decoder_layers,
        "wiring": config.wiring,
        "directions": 1 if isinstance(model.encoder, SelfAttentionEncoder) else 2,
        "split": config.memory == "split",
        "narrow": model.narrow is not None,
        "attention": model.alignment_layer,
        "window": None,
    }
    return {"encoder": encoder, "embedding": _embedding("embed", 1.0, "none"), "cells": decoder, "norm": ""}


def _language_model_parts(model: Any) -> dict[str, Any]:
    common = {"task": "generate", "pool": None, "encoder": None, "norm": "norm"}
    if isinstance(model, LanguageModel) and isinstance(model.config, DecoderConfig):
        parts = model.parts
        embedding = _embedding("embed", parts.embed_scale, parts.positions.kind)
        return common | {"embedding": embedding, "stack": _stack("blocks", parts.layers, parts)}
    if isinstance(model, RecurrentLanguageModel):
        config = model.config
        attention = None if model.self_attention is None else "self_attention.attention"
        cells = {"cell": config.model, "layers": config.layers, "attention": attention, "window": config.window}
        return common | {"embedding": _embedding("embed", 1.0, "none"), "cells": cells}
    raise lacks(f"a {type(model).__name__}", "Give a language model that was trained here.")


def _classifier_parts(model: TextClassifier) -> dict[str, Any]:
    if not isinstance(model.config, ClassifierConfig) or model.wide is not None:
        raise lacks("a published classifier, or a linear model of words beside it", "Omit " + setting("wide") + ".")
    parts = model.parts
    cells = stack = None
    if parts.recurrent is not None:
        cells = {"name": "reader.recurrent", "cell": parts.recurrent, "layers": parts.layers}
    elif parts.layers:
        stack = _stack("reader.blocks", parts.layers, parts)
    embedding = _embedding("reader.embed", parts.embed_scale, parts.positions.kind, "reader.positions")
    encoder = _encoder(embedding, "reader.norm", stack=stack, cells=cells) | {"residual": parts.residual}
    return {"task": "classify", "encoder": encoder, "pool": "pool.attention", "embedding": None, "norm": ""}

"""Small untrained models of every family, as checkpoint contents that `qkv.load` accepts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qkv.checkpoint.contents import Contents
from qkv.data.tokenizer import Tokenizer
from qkv.metrics.figure import Figure
from qkv.models.configs.pointer import PointerConfig
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.pointer import PointerNetwork
from qkv.models.smoother import KernelSmoother
from qkv.settings import build
from qkv.tasks.classify import model as reader
from qkv.tasks.generate import model as language
from qkv.tasks.translate.model import TranslationConfig, build_model

TEXT = ["the cat sat on the mat", "a dog ran to the cat ."]
RECURRENT = {"model": "gru", "score": "additive", "embedding": 4, "hidden": 6, "attention": 4}
MONOTONIC = {"model": "gru", "alignment": "monotonic-1", "embedding": 4, "hidden": 6}
TRANSFORMER = {"width": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 1}
LANGUAGE = {"width": 8, "heads": 2, "feed_forward": 8, "layers": 1, "context": 8}
READER = {"model": "gru", "width": 4}
POINTER: dict[str, Any] = {"width": 4, "attention": 4, "layers": 1, "heads": 2}
KERNEL = {"kernel": "epanechnikov", "bandwidth": "cross-validation", "beyond": "nearest"}
LABELS = ("bad", "good")


def families() -> dict[str, Contents]:
    """Contents by name."""
    words, letters = Tokenizer.learn(TEXT, kind="word"), Tokenizer.learn(TEXT, kind="char")
    pointed: dict[str, Any] = {"words": None, "order": "sequence", "longest": 3}
    vectors = {**pointed, "elements": "numbers", "features": 2}
    spans = {**pointed, "elements": "words", "features": 3, "words": ["<unk>", "(", ")"]}
    columns: dict[str, Any] = {"x": ["age", "area"], "y": "rent", "decimal": "point"}
    labels: dict[str, Any] = {"labels": list(LABELS), "longest": 32}
    return {
        "gru": contents(words, "translate", RECURRENT, lambda: translator(RECURRENT, words), {"longest": 32}),
        "monotonic": contents(words, "translate", MONOTONIC, lambda: translator(MONOTONIC, words), {"longest": 32}),
        "transformer": contents(
            words,
            "translate",
            {"model": "transformer", **TRANSFORMER},
            lambda: translator(TRANSFORMER, words),
            {"longest": 32},
        ),
        "language": contents(letters, "generate", LANGUAGE, lambda: language_model(letters), {}),
        "classifier": contents(words, "classify", READER, lambda: reader_of(ClassifierConfig, words), labels),
        "tagger": contents(letters, "tag", READER, lambda: reader_of(ReaderConfig, letters), labels),
        "pointer": contents(None, "point", POINTER, lambda: _pointer("numbers", 2), vectors),
        "pointer at words": contents(None, "point", POINTER, lambda: _pointer("words", 3), spans),
        "regression": contents(None, "regress", KERNEL, _smoother, columns),
    }


def contents(
    tokenizer: Tokenizer | None, task: str, table: dict[str, Any], make: Callable[[], nn.Module], more: dict[str, Any]
) -> Contents:
    torch.manual_seed(0)
    config = {"task": task, "model": table, "text": {"train": "0" * 64}, **more}
    text = None if tokenizer is None else tokenizer.to_json()
    return Contents(make().state_dict(), config, text, None, (Figure("bleu", 31.2, "case:mixed"),))


def translator(table: dict[str, Any], tokenizer: Tokenizer) -> nn.Module:
    return build_model(build(TranslationConfig, table, "model"), tokenizer)


def language_model(tokenizer: Tokenizer) -> nn.Module:
    return language.build_model(build(language.Config, LANGUAGE, "model"), tokenizer.size)


def reader_of(config: type[ReaderConfig], tokenizer: Tokenizer) -> nn.Module:
    return reader.build_model(build(config, READER, "model"), tokenizer.size, LABELS, tokenizer.unk)


def _pointer(elements: Any, features: int) -> nn.Module:
    return PointerNetwork(PointerConfig(elements=elements, features=features, **POINTER))


def _smoother() -> nn.Module:
    points = torch.rand(5, 3, dtype=torch.float64)
    return KernelSmoother(points[:, :2].clone(), points[:, 2:].clone(), "epanechnikov", torch.ones(2).double())

"""Models whose every attention runs through `qkv.nn.Attention`."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.models.copying import CopyingTranslator
    from qkv.models.language_model import DecoderConfig, LanguageModel
    from qkv.models.monotonic import MonotonicConfig, MonotonicTranslator
    from qkv.models.parts import TransformerParts
    from qkv.models.pointer import PointerConfig, PointerNetwork
    from qkv.models.reader import MaskedLanguageModel, ReaderConfig, TextClassifier, TextTagger
    from qkv.models.recurrent_language_model import RecurrentDecoderConfig, RecurrentLanguageModel
    from qkv.models.recurrent_translator import RecurrentConfig, RecurrentTranslator
    from qkv.models.regression import NadarayaWatson
    from qkv.models.translator import TransformerConfig, TransformerTranslator

__all__ = [
    "CopyingTranslator",
    "DecoderConfig",
    "LanguageModel",
    "MaskedLanguageModel",
    "MonotonicConfig",
    "MonotonicTranslator",
    "NadarayaWatson",
    "PointerConfig",
    "PointerNetwork",
    "ReaderConfig",
    "RecurrentConfig",
    "RecurrentDecoderConfig",
    "RecurrentLanguageModel",
    "RecurrentTranslator",
    "TextClassifier",
    "TextTagger",
    "TransformerConfig",
    "TransformerParts",
    "TransformerTranslator",
]

__getattr__ = lazy(
    __name__,
    {
        "CopyingTranslator": "qkv.models.copying",
        "DecoderConfig": "qkv.models.language_model",
        "LanguageModel": "qkv.models.language_model",
        "MaskedLanguageModel": "qkv.models.reader",
        "MonotonicConfig": "qkv.models.monotonic",
        "MonotonicTranslator": "qkv.models.monotonic",
        "NadarayaWatson": "qkv.models.regression",
        "PointerConfig": "qkv.models.pointer",
        "PointerNetwork": "qkv.models.pointer",
        "ReaderConfig": "qkv.models.reader",
        "RecurrentConfig": "qkv.models.recurrent_translator",
        "RecurrentDecoderConfig": "qkv.models.recurrent_language_model",
        "RecurrentLanguageModel": "qkv.models.recurrent_language_model",
        "RecurrentTranslator": "qkv.models.recurrent_translator",
        "TransformerParts": "qkv.models.parts",
        "TextClassifier": "qkv.models.reader",
        "TextTagger": "qkv.models.reader",
        "TransformerConfig": "qkv.models.translator",
        "TransformerTranslator": "qkv.models.translator",
    },
)


def __dir__() -> list[str]:
    return __all__

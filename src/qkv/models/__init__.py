"""Models whose every attention runs through `qkv.nn.Attention`."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.models.configs.language_model import DecoderConfig, RecurrentDecoderConfig
    from qkv.models.configs.pointer import PointerConfig
    from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
    from qkv.models.configs.translator import MonotonicConfig, RecurrentConfig, TransformerConfig
    from qkv.models.copying import CopyingTranslator
    from qkv.models.language_model import LanguageModel
    from qkv.models.monotonic import MonotonicTranslator
    from qkv.models.parts import TransformerParts
    from qkv.models.pointer import PointerNetwork
    from qkv.models.reader import MaskedLanguageModel, TextClassifier, TextTagger
    from qkv.models.recurrent_language_model import RecurrentLanguageModel
    from qkv.models.recurrent_translator import RecurrentTranslator
    from qkv.models.regression import KernelRegression
    from qkv.models.translator import TransformerTranslator

__all__ = [
    "ClassifierConfig",
    "CopyingTranslator",
    "DecoderConfig",
    "KernelRegression",
    "LanguageModel",
    "MaskedLanguageModel",
    "MonotonicConfig",
    "MonotonicTranslator",
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
        "ClassifierConfig": "qkv.models.configs.reader",
        "CopyingTranslator": "qkv.models.copying",
        "DecoderConfig": "qkv.models.configs.language_model",
        "LanguageModel": "qkv.models.language_model",
        "MaskedLanguageModel": "qkv.models.reader",
        "MonotonicConfig": "qkv.models.configs.translator",
        "MonotonicTranslator": "qkv.models.monotonic",
        "KernelRegression": "qkv.models.regression",
        "PointerConfig": "qkv.models.configs.pointer",
        "PointerNetwork": "qkv.models.pointer",
        "ReaderConfig": "qkv.models.configs.reader",
        "RecurrentConfig": "qkv.models.configs.translator",
        "RecurrentDecoderConfig": "qkv.models.configs.language_model",
        "RecurrentLanguageModel": "qkv.models.recurrent_language_model",
        "RecurrentTranslator": "qkv.models.recurrent_translator",
        "TransformerParts": "qkv.models.parts",
        "TextClassifier": "qkv.models.reader",
        "TextTagger": "qkv.models.reader",
        "TransformerConfig": "qkv.models.configs.translator",
        "TransformerTranslator": "qkv.models.translator",
    },
)


def __dir__() -> list[str]:
    return __all__

"""Models whose every attention runs through `qkv.nn.Attention`."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.models.configs.language_model import DecoderConfig as DecoderConfig
    from qkv.models.configs.language_model import RecurrentDecoderConfig as RecurrentDecoderConfig
    from qkv.models.configs.pointer import PointerConfig as PointerConfig
    from qkv.models.configs.reader import ClassifierConfig as ClassifierConfig
    from qkv.models.configs.reader import ReaderConfig as ReaderConfig
    from qkv.models.configs.translator import MonotonicConfig as MonotonicConfig
    from qkv.models.configs.translator import RecurrentConfig as RecurrentConfig
    from qkv.models.configs.translator import TransformerConfig as TransformerConfig
    from qkv.models.copying import CopyingTranslator as CopyingTranslator
    from qkv.models.language_model import LanguageModel as LanguageModel
    from qkv.models.monotonic import MonotonicTranslator as MonotonicTranslator
    from qkv.models.parts import TransformerParts as TransformerParts
    from qkv.models.pointer import PointerNetwork as PointerNetwork
    from qkv.models.reader import MaskedLanguageModel as MaskedLanguageModel
    from qkv.models.reader import TextClassifier as TextClassifier
    from qkv.models.reader import TextTagger as TextTagger
    from qkv.models.recurrent_language_model import RecurrentLanguageModel as RecurrentLanguageModel
    from qkv.models.recurrent_translator import RecurrentTranslator as RecurrentTranslator
    from qkv.models.regression import KernelRegression as KernelRegression
    from qkv.models.translator import TransformerTranslator as TransformerTranslator


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.models.configs.language_model": "DecoderConfig RecurrentDecoderConfig",
        "qkv.models.configs.pointer": "PointerConfig",
        "qkv.models.configs.reader": "ClassifierConfig ReaderConfig",
        "qkv.models.configs.translator": "MonotonicConfig RecurrentConfig TransformerConfig",
        "qkv.models.copying": "CopyingTranslator",
        "qkv.models.language_model": "LanguageModel",
        "qkv.models.monotonic": "MonotonicTranslator",
        "qkv.models.parts": "TransformerParts",
        "qkv.models.pointer": "PointerNetwork",
        "qkv.models.reader": "MaskedLanguageModel TextClassifier TextTagger",
        "qkv.models.recurrent_language_model": "RecurrentLanguageModel",
        "qkv.models.recurrent_translator": "RecurrentTranslator",
        "qkv.models.regression": "KernelRegression",
        "qkv.models.translator": "TransformerTranslator",
    },
)

"""Models whose every attention runs through `qkv.nn.Attention`."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.models.decoder import DecoderConfig, LanguageModel
    from qkv.models.recurrent import RecurrentConfig, RecurrentTranslator
    from qkv.models.transformer import TransformerConfig, TransformerTranslator

__all__ = [
    "DecoderConfig",
    "LanguageModel",
    "RecurrentConfig",
    "RecurrentTranslator",
    "TransformerConfig",
    "TransformerTranslator",
]

__getattr__ = lazy(
    __name__,
    {
        "DecoderConfig": "qkv.models.decoder",
        "LanguageModel": "qkv.models.decoder",
        "RecurrentConfig": "qkv.models.recurrent",
        "RecurrentTranslator": "qkv.models.recurrent",
        "TransformerConfig": "qkv.models.transformer",
        "TransformerTranslator": "qkv.models.transformer",
    },
)


def __dir__() -> list[str]:
    return __all__

"""Normalizers: from the scores of a row to its weights."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.normalizers.base import Normalizer
    from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax, Sum
    from qkv.normalizers.sparse import Entmax, Sparsemax

__all__ = ["Entmax", "Hard", "Identity", "Mean", "Normalizer", "Sigmoid", "Softmax", "Sparsemax", "Sum"]

__getattr__ = lazy(
    __name__,
    {
        "Entmax": "qkv.normalizers.sparse",
        "Hard": "qkv.normalizers.dense",
        "Identity": "qkv.normalizers.dense",
        "Mean": "qkv.normalizers.dense",
        "Normalizer": "qkv.normalizers.base",
        "Sigmoid": "qkv.normalizers.dense",
        "Softmax": "qkv.normalizers.dense",
        "Sparsemax": "qkv.normalizers.sparse",
        "Sum": "qkv.normalizers.dense",
    },
)


def __dir__() -> list[str]:
    return __all__

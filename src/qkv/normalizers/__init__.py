"""Normalizers: from the scores of a row to its weights."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.normalizers.base import Normalizer as Normalizer
    from qkv.normalizers.dense import Hard as Hard
    from qkv.normalizers.dense import Identity as Identity
    from qkv.normalizers.dense import Mean as Mean
    from qkv.normalizers.dense import Sigmoid as Sigmoid
    from qkv.normalizers.dense import Softmax as Softmax
    from qkv.normalizers.dense import Sum as Sum
    from qkv.normalizers.sparse import Entmax as Entmax
    from qkv.normalizers.sparse import Sparsemax as Sparsemax


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.normalizers.base": "Normalizer",
        "qkv.normalizers.dense": "Hard Identity Mean Sigmoid Softmax Sum",
        "qkv.normalizers.sparse": "Entmax Sparsemax",
    },
)

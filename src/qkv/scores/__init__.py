"""Scores: how well a key matches a query."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.scores.base import Score
    from qkv.scores.free import Learned, Uniform
    from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
    from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
    from qkv.scores.sums import Additive, Concat

__all__ = [
    "Additive",
    "Bilinear",
    "Boxcar",
    "Concat",
    "Cosine",
    "Dot",
    "Epanechnikov",
    "Gaussian",
    "Learned",
    "ScaledDot",
    "Score",
    "SquaredDistance",
    "Uniform",
]

__getattr__ = lazy(
    __name__,
    {
        "Additive": "qkv.scores.sums",
        "Bilinear": "qkv.scores.products",
        "Boxcar": "qkv.scores.kernels",
        "Concat": "qkv.scores.sums",
        "Cosine": "qkv.scores.products",
        "Dot": "qkv.scores.products",
        "Epanechnikov": "qkv.scores.kernels",
        "Gaussian": "qkv.scores.kernels",
        "Learned": "qkv.scores.free",
        "ScaledDot": "qkv.scores.products",
        "Score": "qkv.scores.base",
        "SquaredDistance": "qkv.scores.kernels",
        "Uniform": "qkv.scores.free",
    },
)


def __dir__() -> list[str]:
    return __all__

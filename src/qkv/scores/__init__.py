"""Scores: how well a key matches a query."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.scores.base import Score as Score
    from qkv.scores.free import Learned as Learned
    from qkv.scores.free import Uniform as Uniform
    from qkv.scores.kernels import Boxcar as Boxcar
    from qkv.scores.kernels import Epanechnikov as Epanechnikov
    from qkv.scores.kernels import Gaussian as Gaussian
    from qkv.scores.kernels import SquaredDistance as SquaredDistance
    from qkv.scores.products import Bilinear as Bilinear
    from qkv.scores.products import Cosine as Cosine
    from qkv.scores.products import Dot as Dot
    from qkv.scores.products import ScaledDot as ScaledDot
    from qkv.scores.sums import Additive as Additive
    from qkv.scores.sums import Concat as Concat


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.scores.base": "Score",
        "qkv.scores.free": "Learned Uniform",
        "qkv.scores.kernels": "Boxcar Epanechnikov Gaussian SquaredDistance",
        "qkv.scores.products": "Bilinear Cosine Dot ScaledDot",
        "qkv.scores.sums": "Additive Concat",
    },
)

"""When squared distances may be differences of float64 products: points near a common center."""

import torch
from torch import Tensor

from qkv.values.execution import on_host

REACH = 2.0**24
"""The largest ‖q−c‖·‖k−c‖/h² for which a squared distance may be a difference of float64 products.

Its absolute error is then below 4·2⁻⁵³·2²⁴ < 2⁻²⁶, a quarter of float32's rounding of a weight.
"""

NEARBY = 2.0**-20
"""A squared distance below this fraction of ‖q‖² has lost digits as a difference of float64 products.

As a sum of F + 2 products of numbers up to 4‖q‖² its error is at most (F + 2)·2⁻⁵¹·‖q‖². For larger distances that is a
relative error of (F + 2)·2⁻³¹, a roundoff of float32 for 64 features, which (x + δ)^(p/2) and its derivative do not
amplify for any p < 2.
"""


def center(query: Tensor, key: Tensor, scale: float | Tensor, steepness: float = 1.0) -> Tensor | None:
    """Return the point about which squared distances are exact enough as float64 products, or None.

    ‖q−k‖² = ‖q−c‖² + ‖k−c‖² − 2(q−c)·(k−c) cancels where both norms are large and their difference is small. The median
    of the keys is a center that an outlier does not move. A pair cancels only if both of its vectors are far from it,
    so the smaller of the two largest norms bounds the error.

    Args:
        query: (..., Q, F).
        key: (..., K, F).
        scale: 1/h², a number or a tensor.
        steepness: by how much a kernel's slope in ‖q−k‖²/h² exceeds 1.

    Returns:
        The center (..., 1, F) in float64; None if the products would not be exact enough, or the operands are float64
        or lie on a GPU.
    """
    if query.dtype == torch.float64 or not on_host(query.device) or 0 in (*query.shape, *key.shape):
        return None
    median = median_key(key).double()
    max_norms = [(x.double() - median).square_().sum(-1).max() for x in (query, key)]
    max_scale = scale.max() if isinstance(scale, Tensor) else scale
    return median if bool(torch.minimum(*max_norms) * max_scale * steepness <= REACH) else None


def median_key(key: Tensor) -> Tensor:
    """Return the median of each feature over the keys (..., K, F), as (..., 1, F).

    PyTorch 2.13 returns uninitialized memory as the median of a tensor that was expanded along the keys, so such a
    tensor is copied first.

    Example:
        >>> median_key(torch.ones(1, 2).expand(5, 2))
        tensor([[1., 1.]])
    """
    return (key.contiguous() if 0 in key.stride() else key).median(-2, keepdim=True).values

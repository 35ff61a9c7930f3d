"""qkv computes any attention mechanism exactly and fast, trains models with it, and shows what they attend to.

Example:
    >>> import torch, qkv
    >>> query, key, value = torch.randn(3, 2, 8, 16, 64).unbind()
    >>> qkv.attention(query, key, value, mask=qkv.masks.causal()).shape
    torch.Size([2, 8, 16, 64])
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy_names
from qkv._version import VERSION

if TYPE_CHECKING:
    from qkv import masks, normalizers, scores
    from qkv.errors import QkvError
    from qkv.functional import attention, attention_with_weights, explain

__version__ = VERSION

_HOMES = {
    "QkvError": "qkv.errors",
    "attention": "qkv.functional",
    "attention_with_weights": "qkv.functional",
    "explain": "qkv.functional",
    "masks": "qkv.masks",
    "normalizers": "qkv.normalizers",
    "scores": "qkv.scores",
}
__getattr__, __all__ = lazy_names(__name__, _HOMES)  # noqa: PLE0605


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

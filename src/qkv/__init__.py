"""qkv computes any attention mechanism exactly and fast, trains models with it, and shows what they attend to.

Example:
    >>> import torch, qkv
    >>> query, key, value = torch.randn(3, 2, 8, 16, 64).unbind()
    >>> qkv.attention(query, key, value, mask=qkv.masks.causal()).shape
    torch.Size([2, 8, 16, 64])
"""

from typing import TYPE_CHECKING

from qkv import forks  # noqa: F401 - registers what ends PyTorch's threads before a fork
from qkv._lazy import lazy
from qkv._version import VERSION as __version__
from qkv.introspect.display import MapViewer, register_viewer

if TYPE_CHECKING:
    from qkv import biases, distributed, hub, introspect, masks, nn, normalizers, recording, scores
    from qkv.errors import QkvError
    from qkv.functional import attention, attention_with_state, attention_with_weights, explain
    from qkv.hub.flex.attention import flex_attention
    from qkv.introspect.lazy_map import attention_map
    from qkv.normalizers.row_state import RowState, merge
    from qkv.recording import effects, patch, record
    from qkv.tasks.check import check
    from qkv.tasks.compare.call import compare
    from qkv.tasks.load import load
    from qkv.tasks.overview import runs
    from qkv.tasks.prepare.preparing import prepare
    from qkv.tasks.train import train

__all__ = [
    "QkvError",
    "RowState",
    "__version__",
    "attention",
    "attention_map",
    "attention_with_state",
    "attention_with_weights",
    "biases",
    "check",
    "compare",
    "distributed",
    "effects",
    "explain",
    "flex_attention",
    "hub",
    "introspect",
    "live",
    "load",
    "masks",
    "merge",
    "nn",
    "normalizers",
    "patch",
    "prepare",
    "record",
    "recording",
    "runs",
    "scores",
    "train",
]

__getattr__ = lazy(
    __name__,
    {
        "QkvError": "qkv.errors",
        "RowState": "qkv.normalizers.row_state",
        "attention": "qkv.functional",
        "attention_map": "qkv.introspect.lazy_map",
        "attention_with_state": "qkv.functional",
        "attention_with_weights": "qkv.functional",
        "biases": "qkv.biases",
        "check": "qkv.tasks.check",
        "compare": "qkv.tasks.compare.call",
        "distributed": "qkv.distributed",
        "effects": "qkv.recording",
        "explain": "qkv.functional",
        "flex_attention": "qkv.hub.flex.attention",
        "hub": "qkv.hub",
        "introspect": "qkv.introspect",
        "live": "qkv.tasks.live",
        "load": "qkv.tasks.load",
        "masks": "qkv.masks",
        "merge": "qkv.normalizers.row_state",
        "nn": "qkv.nn",
        "normalizers": "qkv.normalizers",
        "patch": "qkv.recording",
        "prepare": "qkv.tasks.prepare.preparing",
        "record": "qkv.recording",
        "recording": "qkv.recording",
        "runs": "qkv.tasks.overview",
        "scores": "qkv.scores",
        "train": "qkv.tasks.train",
    },
)


def __dir__() -> list[str]:
    return __all__


def _map_viewer() -> MapViewer:
    from qkv.recording import maps

    return maps


register_viewer(_map_viewer)

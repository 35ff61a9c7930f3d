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
from qkv._version import VERSION
from qkv.introspect.display import MapViewer, register_viewer

if TYPE_CHECKING:
    from qkv import biases as biases
    from qkv import distributed as distributed
    from qkv import hub as hub
    from qkv import introspect as introspect
    from qkv import masks as masks
    from qkv import nn as nn
    from qkv import normalizers as normalizers
    from qkv import recording as recording
    from qkv import scores as scores
    from qkv.errors import QkvError as QkvError
    from qkv.functional import attention as attention
    from qkv.functional import attention_with_state as attention_with_state
    from qkv.functional import attention_with_weights as attention_with_weights
    from qkv.functional import explain as explain
    from qkv.hub.flex.attention import flex_attention as flex_attention
    from qkv.introspect.lazy_map import attention_map as attention_map
    from qkv.normalizers.row_state import RowState as RowState
    from qkv.normalizers.row_state import merge as merge
    from qkv.recording import effects as effects
    from qkv.recording import patch as patch
    from qkv.recording import record as record
    from qkv.tasks.check import check as check
    from qkv.tasks.compare.call import compare as compare
    from qkv.tasks.live import live as live
    from qkv.tasks.load import load as load
    from qkv.tasks.overview import runs as runs
    from qkv.tasks.prepare.preparing import prepare as prepare
    from qkv.tasks.train import train as train


__version__ = VERSION
__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.biases": "biases",
        "qkv.distributed": "distributed",
        "qkv.errors": "QkvError",
        "qkv.functional": "attention attention_with_state attention_with_weights explain",
        "qkv.hub": "hub",
        "qkv.hub.flex.attention": "flex_attention",
        "qkv.introspect": "introspect",
        "qkv.introspect.lazy_map": "attention_map",
        "qkv.masks": "masks",
        "qkv.nn": "nn",
        "qkv.normalizers": "normalizers",
        "qkv.normalizers.row_state": "RowState merge",
        "qkv.recording": "effects patch record recording",
        "qkv.scores": "scores",
        "qkv.tasks.check": "check",
        "qkv.tasks.compare.call": "compare",
        "qkv.tasks.live": "live",
        "qkv.tasks.load": "load",
        "qkv.tasks.overview": "runs",
        "qkv.tasks.prepare.preparing": "prepare",
        "qkv.tasks.train": "train",
    },
    "__version__",
)


def _map_viewer() -> MapViewer:
    from qkv.recording import maps

    return maps


register_viewer(_map_viewer)

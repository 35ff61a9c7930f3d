"""Other libraries: run, read and write their models, and export ours to other programs."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.hub.attaching import attach as attach
    from qkv.hub.attaching import hypotheses as hypotheses
    from qkv.hub.families.save import save as save


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.hub.attaching": "attach hypotheses",
        "qkv.hub.families.save": "save",
    },
)

"""Other libraries: run, read and write their models, and export ours to other programs."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.hub.attaching import attach, hypotheses
    from qkv.hub.families.save import save

__all__ = ["attach", "hypotheses", "save"]

__getattr__ = lazy(
    __name__,
    {"attach": "qkv.hub.attaching", "hypotheses": "qkv.hub.attaching", "save": "qkv.hub.families.save"},
)


def __dir__() -> list[str]:
    return __all__

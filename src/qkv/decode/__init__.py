"""From a model that predicts the next token to whole sequences: one small protocol, and functions that decode by it.

Each function has the name of its module, as in `from qkv.decode.greedy import greedy`.
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.decode.protocol import Hypothesis, Stepper

__all__ = ["Hypothesis", "Stepper"]

__getattr__ = lazy(__name__, {"Hypothesis": "qkv.decode.protocol", "Stepper": "qkv.decode.protocol"})


def __dir__() -> list[str]:
    return __all__

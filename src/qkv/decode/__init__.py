"""From a model that predicts the next token to whole sequences: one small protocol, and functions that decode by it.

Each function has the name of its module, as in `from qkv.decode.greedy import greedy`.
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.decode.protocol import Hypothesis as Hypothesis
    from qkv.decode.protocol import Stepper as Stepper


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.decode.protocol": "Hypothesis Stepper",
    },
)

"""None is a parameter only where it is the default; elsewhere it would silently mean another equation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call

from qkv.biases import alibi
from qkv.errors import QkvError
from qkv.functional import attention


@pytest.mark.parametrize("which", range(len(MECHANISMS)))
def test_a_parameter_is_none_only_by_default(which: int) -> None:
    call = Call.draw(*MECHANISMS[which])
    tensors = [call.leaves[name] for name in ("query", "key", "value")]
    arguments = call.arguments(call.leaves)
    for place in ("score", "normalizer"):
        owner: Any = arguments[place]
        for parameter in getattr(owner, "parameters", ()):
            if getattr(type(owner), parameter.name, 0) is None:
                continue
            with pytest.raises(QkvError) as caught:  # a bandwidth is checked where the value is made
                attention(*tensors, **{**arguments, place: replace(owner, **{parameter.name: None})})
            assert caught.value.argument == f"{type(owner).__name__}({parameter.name})"


def test_slopes_without_a_value_are_refused() -> None:
    x = torch.randn(2, 3, 4)
    with pytest.raises(QkvError) as caught:
        attention(x, x, x, bias=alibi(None))  # type: ignore[arg-type]
    assert caught.value.argument == "Alibi(slopes)"

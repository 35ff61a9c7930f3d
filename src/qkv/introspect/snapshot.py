"""Copies of the tensors that a lazy map reads later, and a check of those that are not copied."""

from collections.abc import Iterable
from math import prod
from typing import final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from qkv.engine.describe import Arguments
from qkv.engine.problem import Call
from qkv.engine.unchanged import tensors_of
from qkv.errors import UnsupportedError
from qkv.normalizers.kinds import optional_normalizer
from qkv.scores.free import as_score
from qkv.values.execution import mode_of
from qkv.values.parameters import Owner, is_dense


def copied(query: Tensor, key: Tensor, arguments: Arguments) -> tuple[Tensor, Tensor, Arguments]:
    """Copy the tensors of a call, except tables of more numbers than query and key together, and tensors of functions.

    Args:
        query, key: as `qkv.attention` takes them.
        arguments: its other arguments.

    Returns:
        The same call with copies; unchanged if it is traced or transformed, or if query or key is not a dense tensor.

    Example:
        >>> from qkv.scores.products import ScaledDot
        >>> query, key, table = torch.zeros(2, 4), torch.zeros(3, 4), torch.ones(9, 9)
        >>> copies = copied(query, key, Arguments(ScaledDot(), None, None, table, 0.0, None, False))
        >>> copies[0] is query, copies[2].bias is table
        (False, True)
    """
    plain = all(isinstance(x, Tensor) and is_dense(x) for x in (query, key))
    if not plain or mode_of(query, key) != "eager":
        return query, key, arguments
    most = _numbers(query) + _numbers(key)

    def copy(x: Tensor) -> Tensor:
        return x if not is_dense(x) or _numbers(x) > most else _compact(x).clone().expand(x.shape)

    score = as_score(arguments.score)
    normalizer = optional_normalizer(arguments.normalizer)
    bias = arguments.bias.value() if isinstance(arguments.bias, Owner) else arguments.bias
    score, normalizer, mask, bias = tree_map_only(Tensor, copy, (score, normalizer, arguments.mask, bias))
    return copy(query), copy(key), arguments._replace(score=score, normalizer=normalizer, mask=mask, bias=bias)


def _compact(x: Tensor) -> Tensor:
    """Return a view without the repetitions of dimensions that were expanded."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())]


def _numbers(x: Tensor) -> int:
    return prod(size for size, step in zip(x.shape, x.stride(), strict=True) if step)


@final
class Unchanged:
    """The versions of the tensors that a map reads in place.

    Args:
        call: the tensors of the map.

    Example:
        >>> from qkv.engine.describe import describe
        >>> from qkv.scores.products import ScaledDot
        >>> x = torch.zeros(1, 2)
        >>> read = Unchanged(describe(x, x, x, Arguments(ScaledDot(), None, None, None, 0.0, None, False)).call)
        >>> x += 1
        >>> read.check()
        Traceback (most recent call last):
        qkv.errors.UnsupportedError: map: expected the tensors that it was made of; got a tensor ...
    """

    def __init__(self, call: Call) -> None:
        tensors: Iterable[Tensor] = () if torch.compiler.is_compiling() else tensors_of(call)
        self._versions = [(x, x._version) for x in tensors if not x.is_inference()]

    def check(self) -> None:
        """Check that none has changed in place.

        Raises:
            UnsupportedError: one has.
        """
        for x, version in self._versions:
            if x._version != version:
                got = f"a tensor of shape {tuple(x.shape)} and dtype {x.dtype} that was changed in place"
                hint = "Make the map again, or of a copy: large tables and what functions read are not copied."
                raise UnsupportedError("map", "the tensors that it was made of", got, hint)

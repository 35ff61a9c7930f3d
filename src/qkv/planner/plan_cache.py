"""Calls that look like an earlier one: what was checked, described and chosen for that one holds for them too.

Every check of a call, and every choice, follows from sizes, types and the kinds of mechanism, and from no number that a
tensor holds. Beside products of a few hundred rows that way takes a tenth of a call and more, most of it waiting for
code that has left the caches; here it is one look into a table. Only what cannot differ in anything else is looked up:
plain tensors on the CPU in eager calls, a mechanism of ours, no mask or the plain causal one.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.engine.backend import DirectCall
from qkv.engine.describe import bias_type
from qkv.engine.problem import Call, Problem
from qkv.masks.lower import Visibility
from qkv.masks.patterns import Causal
from qkv.normalizers.base import Normalizer
from qkv.normalizers.kinds import KINDS
from qkv.planner.registry import BACKENDS
from qkv.scores.base import Score
from qkv.scores.free import Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat
from qkv.values.parameters import forward_mode

MOST = 512
"""How many kinds of calls are known at a time."""
LONGEST = 1024
"""The most queries or keys: what is kept of a mask stays small, and longer calls have other work."""

CacheKey = tuple[Any, ...]
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_SCORES = (
    *(Dot, ScaledDot, Cosine, Bilinear, Additive, Concat, Uniform),
    *(SquaredDistance, Gaussian, Boxcar, Epanechnikov),
)
_OURS = frozenset({*_SCORES, *KINDS, type(None)})
_NUMBERS = frozenset({int, float, str, bool, type(None)})


class CachedPlan(NamedTuple):
    """What does not differ between calls that look alike.

    Attributes:
        direct: the backend's short way, where it has one.
        problem, visibility, backend: what was found.
        normalizer: stands where none was given; else None, so that no tensor of a call is held.
    """

    direct: DirectCall | None
    problem: Problem
    normalizer: Normalizer | None
    visibility: Visibility
    backend: str

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score: Score,
        normalizer: Normalizer | None,
        bias: Any,
    ) -> Tensor:
        """Compute a call that looks so; bias is a tensor or None."""
        if self.direct is not None:
            return self.direct(query, key, value, score)
        _, problem, own, visibility, backend = self
        if bias is not None and bias.dtype != problem.dtype:
            bias = bias.to(bias_type(problem.dtype, bias.dtype))
        normalizer = own if normalizer is None else normalizer
        assert normalizer is not None
        call = Call(query, key, value, score, normalizer, visibility, bias)
        return BACKENDS[backend].run(problem, call).output


PLANS: dict[CacheKey | None, CachedPlan] = {}
"""What is known, by `cache_key`; None is never known."""


def store_plan(mark: CacheKey, problem: Problem, call: Call, default: bool, backend: str) -> None:
    """Keep what a call came to.

    Args:
        mark: what `cache_key` gave.
        problem, call: what `qkv.engine.describe.describe` gave.
        default: whether the normalizer is the score's own, as none was given.
        backend: what `qkv.planner.choice.choose` gave.
    """
    if len(PLANS) >= MOST:
        PLANS.clear()
    last = None if call.visibility.bounds is None else call.visibility.bounds.last
    if last is not None and last.is_inference():
        # What inference mode makes could not be used outside of it.
        return
    direct = BACKENDS[backend].direct
    whole = all(x.shape[:-2] == problem.leading for x in (call.query, call.key, call.value))
    short = direct(problem) if whole and direct is not None else None
    PLANS[mark] = CachedPlan(short, problem, call.normalizer if default else None, call.visibility, backend)


def cache_key(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: object,
    normalizer: object,
    mask: object,
    bias: object,
    dropout: float,
    grouped: bool,
    backend: str,
) -> CacheKey | None:
    """Everything that decides how a call is checked and computed, or None where more does; not for traced calls.

    Example:
        >>> query, key, value = torch.randn(3, 2, 8, 5, 64).unbind()
        >>> rest = (ScaledDot(), None, None, None, 0.0, False, "auto")
        >>> cache_key(query, key, value, *rest) == cache_key(query + 1, key, value, *rest)
        True
        >>> cache_key(query, key, value.half(), *rest) == cache_key(query, key, value, *rest)
        False
    """
    if (
        grouped
        or dropout != 0
        or type(query) not in _PLAIN
        or type(key) not in _PLAIN
        or type(value) not in _PLAIN
        or not (query.is_cpu and key.is_cpu and value.is_cpu)
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_mode()
        or torch._C._get_tracing_state() is not None
        or torch.is_autocast_enabled("cpu")
        or (torch.is_grad_enabled() and (query.is_inference() or key.is_inference() or value.is_inference()))
    ):
        return None
    shape, other = query.shape, key.shape
    if len(shape) < 2 or len(other) < 2 or not 0 < other[-2] <= LONGEST or not 0 < shape[-2] <= LONGEST:
        return None
    if mask is not None and (type(mask) is not Causal or not _from_start(mask) or other[-2] > shape[-2]):
        return None
    mark = [
        *(backend, mask is None, torch.is_grad_enabled(), torch.get_num_threads(), shape, other, value.shape),
        *(query.dtype, key.dtype, value.dtype),
        *(query.requires_grad, key.requires_grad, value.requires_grad),
    ]
    alike = _add(mark, score) and _add(mark, normalizer) and (bias is None or _add_tensor(mark, bias))
    return tuple(mark) if alike else None


def _from_start(mask: Causal) -> bool:
    return type(mask.offset) is int and mask.offset == 0 and mask.align == "start"


def _add(mark: list[Any], mechanism: object) -> bool:
    """Add a score or a normalizer: its kind, its numbers, and what its tensors look like."""
    kind: Any = type(mechanism)
    if kind not in _OURS:
        return False
    mark.append(kind)
    if mechanism is None:
        return True
    for name, x in vars(mechanism).items():
        if type(x) in _NUMBERS:
            mark.append(x)
        # A tensor elsewhere than in a parameter would be part of the problem.
        elif not (any(name == each[0] for each in kind.parameters) and _add_tensor(mark, x)):
            return False
    return True


def _add_tensor(mark: list[Any], x: Any) -> bool:
    if type(x) not in _PLAIN or not x.is_cpu or (x.is_inference() and torch.is_grad_enabled()):
        return False
    mark += (x.shape, x.dtype, x.requires_grad)
    return True

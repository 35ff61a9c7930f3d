"""A mechanism described by names, for `qkv explain`."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from qkv.errors import ConfigError, expect_name, setting
from qkv.functional import explain
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, dense, lengths, window
from qkv.nn.mechanism import score_name
from qkv.nn.scores import LearnedScore
from qkv.normalizers.base import Normalizer
from qkv.normalizers.catalog import NORMALIZERS
from qkv.planner.plan import Plan
from qkv.scores.base import Score
from qkv.scores.example import example


@dataclass(frozen=True)
class Question:
    """A call of `qkv.attention`, described by names and sizes.

    Args:
        score, normalizer, mask: names; of a score in any spelling of `score_name`; no normalizer means its default.
        batch, heads, queries, keys, width: sizes.
        dropout: dropout of the weights.
        dtype: the name of the dtype.
        gradient: whether to plan for training.
        backend: "auto" or a name.
    """

    score: str = "scaled-dot"
    normalizer: str = ""
    mask: str = "none"
    batch: int = 1
    heads: int = 8
    queries: int = 1024
    keys: int = 1024
    width: int = 64
    dropout: float = 0.0
    dtype: str = "float32"
    gradient: bool = False
    backend: str = "auto"


_LONGEST, _LARGEST = 2**40, 2**62
"""Limits of a single size, and of the product of all sizes."""

_MASKS: dict[str, Callable[[Question], Mask | None]] = {
    "none": lambda question: None,
    "causal": lambda question: causal(),
    "lengths": lambda question: lengths(torch.full((question.batch,), question.keys, device="cpu")),
    "window": lambda question: window(128, 128),
    "dense": lambda question: dense(torch.ones(question.queries, question.keys, dtype=torch.bool, device="cpu")),
}
_DTYPES = {str(dtype).split(".")[1]: dtype for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}


def answer(question: Question) -> Plan:
    """Plan the call that a question describes.

    Args:
        question: names and sizes.

    Returns:
        The plan.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a size is too large for a tensor.
        UnsupportedError: the requested backend does not support the call.

    Example:
        >>> answer(Question(queries=4096, keys=4096, mask="causal")).backend
        'sdpa'
    """
    _expect_countable(question)
    dtype = _DTYPES[expect_name(setting("dtype"), question.dtype, _DTYPES, "a known name")]
    name = score_name(question.score, setting("score"))
    if name in ("none", "location"):
        hint = "It is a part of a recurrent decoder (qkv train), not a score of one call."
        raise ConfigError(setting("score"), "a score of queries and keys", f'"{name}"', hint)
    score = _score(name, question.width, dtype)
    normalizer = _normalizer(question.normalizer)
    mask = _MASKS[expect_name(setting("mask"), question.mask, _MASKS, "a known name")](question)
    # Expanded zeros act as tensors of any size without allocating memory.
    query, key = (
        torch.zeros((), dtype=dtype, device="cpu").expand(question.batch, question.heads, count, question.width)
        for count in (question.queries, question.keys)
    )
    if question.gradient:
        query = query.requires_grad_()
    return explain(
        query,
        key,
        key,
        score=score,
        normalizer=normalizer,
        mask=mask,
        dropout=question.dropout,
        backend=question.backend,
    )


def _score(name: str, width: int, dtype: torch.dtype) -> Score:
    return LearnedScore(width, width, width).to(dtype).value() if name == "learned" else example(name, width, dtype)


def _normalizer(name: str) -> Normalizer | None:
    return NORMALIZERS[expect_name(setting("normalizer"), name, NORMALIZERS, "a known name")].make() if name else None


def _expect_countable(question: Question) -> None:
    sizes = {name: getattr(question, name) for name in ("batch", "heads", "queries", "keys", "width")}
    for name, size in sizes.items():
        if size > _LONGEST:
            hint = "PyTorch does not support larger sizes."
            raise ConfigError(setting(name), f"at most {_LONGEST:,}", f"{size:.3g}", hint)
    if math.prod(max(1, size) for size in sizes.values()) > _LARGEST:
        got = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        hint = "PyTorch does not support larger tensors: use smaller sizes."
        raise ConfigError("sizes", f"a product of at most {_LARGEST:,}", got, hint)

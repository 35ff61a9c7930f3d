"""The likeliest tokens of each row, and their log-probabilities; scores that are not numbers are refused."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from qkv.compiled.available import why_unavailable
from qkv.errors import ConfigError, QkvError
from qkv.values.checked import is_whole_number
from qkv.values.execution import has_plain_memory, readable

_MICROSECONDS = 3e-4
"""Microseconds per score of the compiled search, on one thread."""


def likeliest(logits_RN: Tensor, count: int, never: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Find the likeliest tokens of each row.

    Args:
        logits_RN: scores before the softmax (R, N).
        count: how many of each row.
        never: ids to leave out, but not all N. Low ids cost least; those from N on change nothing.

    Returns:
        The tokens (R, C), the likeliest first, and their log-probabilities (R, C) among all N, at least float32. C is
        the count, or the number of tokens that are not left out if that is less. With a count of 1, the lowest of
        equally likely ids is returned. If all scores of a row are −inf, so are its log-probabilities.

    Raises:
        ConfigError: the count is below one, or `never` holds all ids, or something that is not an id.

    Example:
        >>> tokens, gains = likeliest(torch.tensor([[0.1, 0.6, 0.3]]).log(), 2)
        >>> tokens, gains.exp()
        (tensor([[1, 2]]), tensor([[0.6000, 0.3000]]))
        >>> likeliest(torch.tensor([[0.1, 0.6, 0.3]]).log(), 2, never=[1])[1].exp()
        tensor([[0.3000, 0.1000]])
    """
    scores = logits_RN if logits_RN.dtype == torch.float64 else logits_RN.float()
    if not torch.compiler.is_compiling():
        if not is_whole_number(count) or count < 1:
            raise ConfigError("count", "1 or more tokens", f"{count!r:.60}", "Give the number of tokens to find.")
        never = as_ids("never", never)
        lowest_of_others(never, scores.shape[-1])
    tokens, gains = _search(scores, count, never)
    return tokens, _fill_impossible_rows(scores, gains)


def as_ids(name: str, ids: Sequence[int]) -> tuple[int, ...]:
    """Check token ids that a caller lists.

    Args:
        name: of the argument, for the message.
        ids: whole numbers from 0 on.

    Returns:
        The ids.

    Raises:
        ConfigError: it is not a sequence, or an element is negative or not a whole number.

    Example:
        >>> as_ids("never", [-1])
        Traceback (most recent call last):
        qkv.errors.ConfigError: never: expected ids, whole numbers from 0 on; got -1. Give ids of encode().
    """
    hint = "Give ids of encode()."
    if isinstance(ids, Tensor) and ids.ndim == 1:
        ids = ids.tolist()
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise ConfigError(name, "a list of ids, whole numbers from 0 on", f"{ids!r:.60}", hint)
    listed = tuple(ids)
    wrong = [number for number in listed if not is_whole_number(number) or number < 0]
    if wrong:
        raise ConfigError(name, "ids, whole numbers from 0 on", f"{wrong[0]!r:.60}", hint)
    return listed


def lowest_of_others(never: Collection[int], size: int) -> int:
    """Return the lowest id that is not left out.

    Args:
        never: the ids that are left out.
        size: N, the size of the vocabulary.

    Returns:
        From 0 to N − 1.

    Raises:
        ConfigError: all N ids are left out.

    Example:
        >>> lowest_of_others([0, 2], 4)
        1
    """
    lowest = next((number for number in range(size) if number not in never), None)
    if lowest is None:
        raise ConfigError("never", f"not all of {size} tokens", "each of them", "Leave out one that may be chosen.")
    return lowest


def log_probability(logits_RN: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of one token of each row.

    Args:
        logits_RN: scores before the softmax (R, N).
        tokens: (R,), int64.

    Returns:
        (R,), at least float32; −inf in rows whose scores are all −inf.

    Example:
        >>> log_probability(torch.tensor([[0.1, 0.6, 0.3]]).log(), torch.tensor([1])).exp()
        tensor([0.6000])
    """
    return log_probabilities(logits_RN).gather(-1, tokens[:, None]).squeeze(-1)


def log_probabilities(logits_RN: Tensor) -> Tensor:
    """Return the log-probabilities of all tokens of each row.

    Args:
        logits_RN: scores before the softmax (R, N).

    Returns:
        (R, N), at least float32; −inf in rows whose scores are all −inf.

    Example:
        >>> log_probabilities(torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]])).exp()
        tensor([[0.5000, 0.5000],
                [0.0000, 0.0000]])
    """
    scores = logits_RN if logits_RN.dtype == torch.float64 else logits_RN.float()
    return _fill_impossible_rows(scores, scores.log_softmax(-1))


def _fill_impossible_rows(scores_RN: Tensor, gains_RC: Tensor) -> Tensor:
    """Replace NaN by −inf in rows whose scores are all −inf; leave other NaN."""
    if readable(gains_RC) and not gains_RC[:, 0].isnan().any():
        return gains_RC
    return gains_RC.masked_fill((scores_RN == -torch.inf).all(-1, keepdim=True), -torch.inf)


def _search(scores_RN: Tensor, count: int, never: Sequence[int]) -> tuple[Tensor, Tensor]:
    has_graph = scores_RN.requires_grad and torch.is_grad_enabled()
    if scores_RN.dtype == torch.float32 and not has_graph and has_plain_memory(scores_RN):
        search = _compiled()
        if search is not None:
            return search(scores_RN, count, never)
    tokens = _search_except(scores_RN, count, never) if never else _top(scores_RN, count)[1]
    # PyTorch's log_softmax of all N takes less time than separate calls that would compute only a few.
    return tokens, scores_RN.log_softmax(-1).gather(1, tokens)


@lru_cache
def _compiled() -> Callable[[Tensor, int, Sequence[int]], tuple[Tensor, Tensor]] | None:
    """Return the compiled search, or None without kernels."""
    if why_unavailable() is not None:
        return None
    from qkv.compiled import thread_pool
    from qkv.decode.top_tokens_kernel import BLOCK, best_tokens

    def search(scores_RN: Tensor, count: int, never: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows, size = scores_RN.shape
        scores = scores_RN.detach().contiguous().numpy()
        ruled_out = np.array([number for number in set(never) if number < size], np.uint64)
        tokens = np.empty((rows, min(count, size - ruled_out.size)), np.uint64)
        gains = np.empty(tokens.shape, np.float32)
        kernel_arguments = (size, scores.reshape(-1), ruled_out, tokens, gains)
        scratch = (((-(-size // BLOCK),), np.float32),)
        thread_pool.run_in_chunks(best_tokens, np.float32, rows, scores.size * _MICROSECONDS, kernel_arguments, scratch)
        return torch.from_numpy(tokens.view(np.int64)), torch.from_numpy(gains)

    return search


def _search_except(scores_RN: Tensor, count: int, never: Sequence[int]) -> Tensor:
    """Search the ids above the highest one left out, and compare the best with the few ids below it."""
    size, start = scores_RN.shape[-1], max(never) + 1
    below = [number for number in range(min(start, size)) if number not in never]
    above = [_top(scores_RN[:, start:], count)[1] + start] if start < size else []
    if not below:
        return above[0]
    # In the order of ids, so that the lowest of equally likely ones comes first.
    tokens = torch.cat([torch.tensor(below, device=scores_RN.device).expand(len(scores_RN), -1), *above], 1)
    return tokens.gather(1, _top(scores_RN.gather(1, tokens), count)[1])


def _top(scores_RN: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if count == 1:
        top, tokens = scores_RN.max(-1, keepdim=True)
        return top, tokens
    top, tokens = scores_RN.topk(min(count, scores_RN.shape[-1]), -1)
    return top, tokens


def expect_numbers(scores: Tensor, where: str) -> None:
    """Raise an error if scores hold NaN.

    Args:
        scores: any shape.
        where: the line or token that they belong to, for the message.

    Raises:
        QkvError: there is a NaN.

    Example:
        >>> expect_numbers(torch.tensor([0.0, float("-inf")]), "line 1")
        >>> expect_numbers(torch.tensor([float("nan")]), "line 1")
        Traceback (most recent call last):
        qkv.errors.QkvError: model: expected scores that are numbers; got NaN for line 1. The parameters hold NaN or
        Inf: take an earlier checkpoint.
    """
    if scores.isnan().any():
        hint = "The parameters hold NaN or Inf: take an earlier checkpoint."
        raise QkvError("model", "scores that are numbers", f"NaN for {where}", hint)

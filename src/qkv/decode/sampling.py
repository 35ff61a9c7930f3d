"""Sampling: tokens drawn by their probabilities, with random numbers that depend on the row alone."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import final

import torch
from torch import Tensor

from qkv.decode.likeliest import as_ids, likeliest, log_probability, lowest_of_others
from qkv.decode.protocol import Hypothesis, State, Stepper
from qkv.decode.walk import as_never, walk
from qkv.errors import ConfigError, DtypeError, ShapeError
from qkv.linalg.session import DecodingSession
from qkv.values.checked import checked, is_whole_number

_GOLDEN = 0x9E3779B97F4A7C15
"""SplitMix64's increment: 2⁶⁴ divided by the golden ratio, made odd."""
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""The shifts and factors of SplitMix64's finalizer."""
_WORD = 1 << 64
_EXTREME = 2.0**-60
"""Temperatures below this, or above its inverse, are applied in float64."""


@final
@checked
@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: the filters, in the order in which they apply, and the seed.

    Args:
        temperature: divides the scores; 0 keeps the likeliest token only.
        top_k: keeps the k likeliest tokens, and those that tie with the last of them; None keeps all.
        top_p: keeps the smallest set of likeliest tokens with this total probability, and ties; None keeps all.
        seed: determines every draw, together with the key of the row and the step.

    Raises:
        ConfigError: a number outside its range.

    Source: Fan et al. 2018, "Hierarchical Neural Story Generation", section 5.4 (top-k); Holtzman et al. 2020, "The
        Curious Case of Neural Text Degeneration", section 3.1 (top-p).

    Example:
        >>> Sampling(top_p=0.7).filtered(torch.tensor([[0.5, 0.3, 0.2]]).log()).exp()
        tensor([[0.5000, 0.3000, 0.0000]])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError("temperature", "0 or more", f"{self.temperature}", "1 changes nothing.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError("top_k", "at least 1", f"{self.top_k}", "Leave it out to keep all tokens.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError("top_p", "a share in (0, 1]", f"{self.top_p}", "1 keeps all tokens.")

    def filtered(self, logits_RN: Tensor, never: Sequence[int] = ()) -> Tensor:
        """Return the scores that are drawn from: divided by the temperature, −inf for tokens that are ruled out.

        Args:
            logits_RN: scores before the softmax (R, N).
            never: ids that are ruled out before the filters; those from N on change nothing.

        Returns:
            (R, N), at least float32; not normalized.

        Raises:
            ConfigError: `never` holds something that is not an id.
        """
        scores = logits_RN if logits_RN.dtype == torch.float64 else logits_RN.float()
        ruled_out = [number for number in as_ids("never", never) if number < scores.shape[-1]]
        if ruled_out:
            scores = scores.index_fill(-1, torch.tensor(ruled_out, device=scores.device), -torch.inf)
        if self.temperature == 0:
            return _at_least(scores, scores.amax(-1, keepdim=True))
        if not _EXTREME <= self.temperature <= 1 / _EXTREME:  # or quotients overflow, and become NaN
            scores = scores.double()
            scores = (scores - scores.amax(-1, keepdim=True)) / self.temperature
        elif self.temperature != 1:
            scores = scores / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            scores = _at_least(scores, scores.topk(self.top_k, -1).values[..., -1:])
        if self.top_p is not None and self.top_p < 1:
            scores = _at_least(scores, _nucleus(scores, self.top_p))
        return scores

    def pick(self, logits_RN: Tensor, keys: Tensor, step: int, never: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Draw one token for each row.

        The token of a row depends on its scores, its key, the step and the seed, never on other rows: it is the inverse
        of the cumulative distribution, in the order of ids, at one uniform number.

        Args:
            logits_RN: scores before the softmax (R, N).
            keys: a number that identifies each row (R,), int64; see `row_keys`.
            step: the number of tokens drawn before.
            never: ids that are never drawn, but not all N.

        Returns:
            The tokens (R,), and their log-probabilities under the model, before any filter (R,).

        Raises:
            ConfigError: `never` holds all ids, or something that is not an id.
            ShapeError: not one key for each row.
            DtypeError: the keys are not whole numbers.

        Example:
            >>> logits, keys = torch.zeros(4, 3), torch.tensor([7, 8, 9, 7])
            >>> tokens, gains = Sampling(seed=1).pick(logits, keys, step=0)
            >>> bool(tokens[0] == tokens[3]), round(float(gains[0]), 4)
            (True, -1.0986)
        """
        scores = logits_RN if logits_RN.dtype == torch.float64 else logits_RN.float()
        keys, never = _as_keys(keys, scores), as_ids("never", never)
        if self.temperature == 0:
            tokens = likeliest(scores, 1, never)[0].squeeze(-1)
        else:
            cumulative = self.filtered(logits_RN, never).double().softmax(-1).cumsum(-1)
            drawn = uniform(self.seed, keys, step)[:, None] * cumulative[:, -1:]
            # Rows of NaN give an index past the end; the journal reports them.
            tokens = torch.searchsorted(cumulative, drawn, right=True).squeeze(-1).clamp_(max=scores.shape[-1] - 1)
            if never:
                # If no token that may be drawn has any probability, take the lowest id, as `likeliest` does.
                tokens = torch.where(cumulative[:, -1] > 0, tokens, lowest_of_others(never, scores.shape[-1]))
        return tokens, log_probability(scores, tokens)


def uniform(seed: int, keys: Tensor, step: int) -> Tensor:
    """Return uniform numbers in [0, 1) that depend on seed, key and step alone.

    Args:
        seed: any integer.
        keys: (R,), int64.
        step: from 0.

    Returns:
        (R,), float64, multiples of 2⁻⁵³.

    Source: Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators", figure 16 (SplitMix64).

    Example:
        >>> uniform(0, torch.tensor([5, 6]), step=0)
        tensor([0.4167, 0.0605], dtype=torch.float64)
    """
    bits = _mixed(keys ^ _signed(_mixed_number(seed)))
    bits = _mixed(bits + _signed((step + 1) * _GOLDEN))
    return _shifted(bits, 11).double() * 2.0**-53


@final
class RowKeys:
    """Makes the keys of `row_keys` for rows that arrive in parts: a source that was seen before gets another key.

    It stores a count for each different source.

    Example:
        >>> keys = RowKeys()
        >>> keys.of([[5, 6], [7]]) + keys.of([[5, 6]]) == row_keys([[5, 6], [7], [5, 6]])
        True
    """

    def __init__(self) -> None:
        self._source_counts: dict[int, Counter[bytes]] = {}

    def of(self, sources: Sequence[Sequence[int]], sample: int = 0) -> list[int]:
        """Return one key per row, see `row_keys`."""
        if not is_whole_number(sample):
            raise ConfigError("sample", "a whole number", f"{sample!r:.60}", "Number the draws of a source from 0 on.")
        counts = self._source_counts.setdefault(sample, Counter())
        keys: list[int] = []
        for source in _as_sources(sources):
            digest = blake2b(f"{source}".encode(), digest_size=16).digest()
            text = f"{sample}:{counts[digest]}:{source}".encode()
            keys.append(int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True))
            counts[digest] += 1
        return keys


def _as_sources(sources: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return rows of plain integers, because a key is a hash of the printed row."""
    hint = "Give a list of ids for each row, such as [[5, 6], [7]]."
    if isinstance(sources, (str, bytes)) or not isinstance(sources, Iterable):
        raise ConfigError("sources", "a list of ids for each row", f"{sources!r:.60}", hint)
    rows = []
    for number, source in enumerate(sources):
        ids = source.tolist() if isinstance(source, Tensor) else source
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise ConfigError(f"sources[{number}]", "a list of ids", f"{source!r:.60}", hint)
        row = tuple(ids)
        wrong = [number for number in row if not is_whole_number(number)]
        if wrong:
            raise ConfigError(f"sources[{number}]", "ids, which are whole numbers", f"{wrong[0]!r:.60}", hint)
        rows.append(tuple(map(int, row)))
    return rows


def row_keys(sources: Sequence[Sequence[int]], sample: int = 0) -> list[int]:
    """Return keys that depend on the content of rows alone, so that the batch and its order change no draw.

    Args:
        sources: the ids of each row. A source that occurs again gets another key.
        sample: the number of the draw, if several are made for each source.

    Returns:
        One key per row.

    Raises:
        ConfigError: a row is not a list of whole numbers, or `sample` is not a whole number.

    Example:
        >>> one, other, again = row_keys([[5, 6], [7], [5, 6]])
        >>> row_keys([[7]]) == [other], one == again
        (True, False)
    """
    return RowKeys().of(sources, sample)


@torch.inference_mode()
def sample(
    model: Stepper[State],
    source: Tensor,
    lengths: Tensor,
    *,
    bos: int,
    eos: int,
    limit: int | Tensor,
    sampling: Sampling,
    keys: Tensor,
    never: Sequence[int] = (),
    session: DecodingSession | None = None,
) -> list[Hypothesis]:
    """Decode each row by drawing token after token. Finished rows leave the batch.

    Args:
        model: predicts the next token; a module should be in evaluation mode.
        source: token ids (B, S), int64.
        lengths: tokens in each row (B,), int64.
        bos: the begin mark, the first token that the model is given.
        eos: the end token; a row that draws it is finished.
        limit: the largest number of tokens, the end token included; one number, or one for each row (B,).
        sampling: how tokens are drawn.
        keys: a number that identifies each row (B,), int64; see `row_keys`.
        never: ids that are never drawn, whatever their scores. The end token may not be among them.
        session: keeps packed weights and memory for several decodings; None for this one alone.

    Returns:
        One hypothesis per row; scores are the model's own, before any filter. It is unfinished if the row reached the
        limit, or if no token that may be drawn had any probability.

    Raises:
        ShapeError: `limit` or `keys` has another shape.
        DtypeError: the keys are not whole numbers.
        ConfigError: `never` holds the end token.
        QkvError: the model's scores are not numbers.

    Example:
        >>> class Even:  # four tokens, all as likely
        ...     def start(self, source, lengths, session=None):
        ...         return source
        ...     def step(self, tokens, state):
        ...         return torch.zeros(len(tokens), 4), state
        ...     def select(self, state, rows):
        ...         return state[rows]
        >>> source, lengths, keys = torch.tensor([[5], [3]]), torch.tensor([1, 1]), torch.tensor([5, 3])
        >>> options = {"bos": 0, "eos": 1, "limit": 8, "sampling": Sampling(seed=3)}
        >>> both = sample(Even(), source, lengths, keys=keys, **options)
        >>> sample(Even(), source[1:], lengths[1:], keys=keys[1:], **options) == both[1:]
        True
    """
    keys = _as_keys(keys, source)
    ruled_out = as_never(never, eos)

    def draw(logits_RN: Tensor, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return sampling.pick(logits_RN, keys[rows], step, ruled_out)

    return walk(model, source, lengths, draw, bos=bos, eos=eos, limit=limit, session=session)


def _as_keys(keys: Tensor, rows: Tensor) -> Tensor:
    """Return keys in int64, as draws are functions of 64 bits."""
    if keys.dtype == torch.int64 and keys.shape == rows.shape[:1]:
        return keys
    if keys.shape != rows.shape[:1]:
        got = f"shape {tuple(keys.shape)}"
        raise ShapeError("keys", f"one for each of {rows.shape[0]} rows", got, "See row_keys.")
    if keys.dtype == torch.bool or keys.is_floating_point() or keys.is_complex():
        raise DtypeError("keys", "whole numbers, int64", f"{keys.dtype}", "See row_keys.")
    return keys.long()


def _at_least(scores_RN: Tensor, threshold_R1: Tensor) -> Tensor:
    return torch.where(scores_RN < threshold_R1, -torch.inf, scores_RN)


def _nucleus(scores_RN: Tensor, share: float) -> Tensor:
    """Return the lowest score in the smallest set of likeliest tokens with a total probability of `share` (R, 1)."""
    ordered = scores_RN.sort(-1, descending=True).values
    cumulative = ordered.double().softmax(-1).cumsum(-1)
    count = (cumulative < share).sum(-1, keepdim=True).clamp_(max=scores_RN.shape[-1] - 1)
    return ordered.gather(-1, count)


def _mixed(bits: Tensor) -> Tensor:
    """SplitMix64's finalizer on 64-bit words."""
    for shift, factor in _MIX:
        bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
    return bits


def _mixed_number(number: int) -> int:
    number %= _WORD
    for shift, factor in _MIX:
        number = (number ^ (number >> shift)) * factor % _WORD
    return number


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift to the right, filling with zeros."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    number %= _WORD
    return number - _WORD if number >= _WORD >> 1 else number

"""How long a translation may become by default: as long as those that were trained on."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkv.checkpoint.json_values import JsonValue
from qkv.errors import CheckpointError
from qkv.nn.positions import PositionEmbedding
from qkv.tasks.runs import OTHER_VERSION
from qkv.tasks.translate.settings import MORE_TOKENS, TOKENS_PER_SOURCE_TOKEN

STORED = "longest_targets"
"""The field of a run's configuration with `LengthLimit.longest`; older runs, and most others, have none."""
Lengths = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Tokens of sources and of targets, (N,) each; ends are not counted."""


@final
@dataclass(frozen=True)
class LengthLimit:
    """The default maximum tokens of a translation, its end included.

    No text of a language pair grows more than threefold, but characters, notations and answers do. Those trained on
    are stored: a translation may then be as long as the longest target of any source that was no longer than its own.

    Args:
        longest: numbers of source tokens, ascending, each with the largest number of tokens of a target above the usual
            limit of its source, whose source had at most so many; targets ascend too.
        most: how many tokens the positions of the model hold; None for any number.

    Example:
        >>> limit = LengthLimit.of([(np.array([9, 6, 4]), np.array([12, 60, 20]))])
        >>> limit, limit(torch.tensor([5, 6, 30])).tolist()
        (LengthLimit(longest=((6, 60),), most=None), [31, 76, 106])
    """

    longest: tuple[tuple[int, int], ...] = ()
    most: int | None = None

    @classmethod
    def of(cls, parts: Iterable[Lengths]) -> "LengthLimit":
        """Return the limit that follows from training pairs.

        Args:
            parts: their lengths, in any number of parts.
        """
        limit = cls()
        for sources, targets in parts:
            above = targets + 1 > TOKENS_PER_SOURCE_TOKEN * sources + MORE_TOKENS
            new = zip(sources[above].tolist(), targets[above].tolist(), strict=True)
            limit = cls(_rising([*limit.longest, *new]))
        return limit

    @classmethod
    def stored(cls, value: object, folder: str) -> "LengthLimit":
        """Read the limit from a run's configuration.

        Args:
            value: the result of `to_json_value`; None if there is none.
            folder: the checkpoint, for messages.

        Raises:
            CheckpointError: it is not such a list.
        """
        pairs: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
        for pair in pairs:
            numbers = isinstance(pair, list) and len(pair) == 2
            if not numbers or not all(type(number) is int and 0 < number < 2**31 for number in pair):
                expected = f"pairs of numbers of tokens as {STORED} in config.json"
                raise CheckpointError(folder, expected, repr(pair)[:80], OTHER_VERSION)
        return cls(_rising((source, target) for source, target in pairs))

    @classmethod
    def all(cls, limits: Iterable["LengthLimit"]) -> "LengthLimit":
        """Return the limit of an ensemble: the largest of its models."""
        return cls(_rising(pair for limit in limits for pair in limit.longest))

    def within(self, models: Iterable[nn.Module]) -> "LengthLimit":
        """Return the limit of models: what their learned positions hold at most, if they have some."""
        positions = (getattr(model, "positions", None) for model in models)
        learned = [one for one in positions if isinstance(one, PositionEmbedding) and one.kind == "learned"]
        return replace(self, most=min((one.length - one.skipped for one in learned), default=None))

    def to_json_value(self) -> list[JsonValue]:
        """Return the pairs as lists."""
        return [list(pair) for pair in self.longest]

    def __call__(self, source_tokens: Tensor) -> Tensor:
        """Return the maximum tokens of each translation (B,), from the number of source tokens (B,)."""
        limit = TOKENS_PER_SOURCE_TOKEN * source_tokens + MORE_TOKENS
        if self.longest:
            sources, targets = torch.tensor(self.longest, device=source_tokens.device).T.contiguous()
            trained = torch.searchsorted(sources, source_tokens, right=True)  # (B,): how many have shorter sources
            limit = torch.maximum(limit, torch.cat([targets.new_zeros(1), targets + MORE_TOKENS])[trained])
        return limit if self.most is None else limit.clamp(max=self.most)


def _rising(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the pairs in which the target is longer than with any shorter source."""
    rising: dict[int, int] = {}
    longest = 0
    for source, target in sorted(pairs):
        if target > longest:
            longest = rising[source] = target
    return tuple(rising.items())

"""The tokens of a prepared text, of which trainings read windows."""

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.choices import WindowOrder
from qkv.data.permutation import Permutation
from qkv.data.text import window_shift
from qkv.tasks.corpora.manifest import VALID_TEXT, Shard
from qkv.tasks.corpora.prepared import Corpus, mapped


@final
class PreparedText:
    """The training text of a prepared corpus.

    Args:
        corpus: the corpus.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        shards = corpus.manifest.shards
        self._ends = np.cumsum(np.array([shard.tokens for shard in shards], dtype=np.int64))
        self.tokens = int(self._ends[-1]) if shards else 0
        self.unknown = sum(shard.unknown for shard in shards)

    def cut(self, starts: Sequence[int], context: int) -> Tensor:
        """Read windows with the token before each.

        Args:
            starts: where each window begins.
            context: number of tokens that each window predicts.

        Returns:
            (len(starts), context + 1), int64.

        Raises:
            DataError: a file was altered.
        """
        windows = np.empty((len(starts), context + 1), dtype=np.int64)
        shards: dict[int, NDArray[Any]] = {}
        first_shards = np.searchsorted(self._ends, np.asarray(starts), side="right").tolist()
        for window, start, first_shard in zip(windows, starts, first_shards, strict=True):
            filled, number = 0, first_shard
            while filled < len(window):  # a window can end in a later shard
                if number not in shards:
                    shards[number] = self._corpus.ids(number)
                first = start + filled - (int(self._ends[number]) - len(shards[number]))
                part = shards[number][first : first + len(window) - filled]
                window[filled : filled + len(part)] = part
                filled += len(part)
                number += 1
        self._corpus.expect_ids(windows, self._corpus.tokenizer.size)
        return torch.from_numpy(windows)

    def batches(self, context: int, rows: int, order: WindowOrder, seed: int, epoch: int) -> "WindowBatches":
        """Return the batches of an epoch: windows of the context length, in an order that is computed.

        Args:
            context: tokens that a window predicts.
            rows: windows in a batch.
            order: "random", by a keyed permutation, or "sequential".
            seed: random seed.
            epoch: from 0.

        Raises:
            DataError: the text is shorter than one window.
        """
        return WindowBatches(self.tokens, context, rows, order, f"{self._corpus.manifest.digest}:{seed}:{epoch}")

    def lines(self, starts: Sequence[int]) -> list[int]:
        """Return the line numbers where windows begin, counted over all files."""
        return [self._line(start) for start in starts]

    def _line(self, start: int) -> int:
        number = int(np.searchsorted(self._ends, start, side="right"))
        ids = self._corpus.ids(number)
        before = ids[: start - (int(self._ends[number]) - len(ids))]
        tokenizer = self._corpus.tokenizer
        if self._corpus.manifest.documents:
            passed = int((before == tokenizer.eos).sum())
        else:
            passed = tokenizer.decode(before.tolist()).count("\n")
        return self._corpus.manifest.shards[number].line + passed

    def held_out(self) -> tuple[Tensor, Shard]:
        """Return the tokens that were held out, and what is known of them.

        Raises:
            DataError: the file was altered.
        """
        corpus, shard = self._corpus, self._corpus.manifest.valid
        assert isinstance(shard, Shard)
        ids = mapped(corpus.folder / VALID_TEXT, shard.ids, np.dtype(f"<u{corpus.manifest.width}"))
        corpus.expect_ids(ids, corpus.tokenizer.size)
        return torch.from_numpy(ids.astype(np.int64)), shard


@final
class WindowBatches:
    """Batches of a text's windows, by their number.

    Args:
        tokens: how many the text has.
        context: tokens that a window predicts.
        rows: windows in a batch.
        order: of the windows.
        key: of the order; another key gives another order.

    Example:
        >>> batches = WindowBatches(20, context=4, rows=3, order="sequential", key="0")
        >>> batches.at(0), batches.at(1), batches.end
        ([0, 4, 8], [12], 2)
    """

    def __init__(self, tokens: int, context: int, rows: int, order: WindowOrder, key: str) -> None:
        self._context, self._rows, self._key = context, rows, f"windows:{order}:{tokens}:{context}:{rows}:{key}"
        self._shift = window_shift(tokens, context, order, Random(self._key))
        self._count = len(range(self._shift, tokens - context, context))
        self._order = None if order == "sequential" else Permutation(self._count, self._key)

    @property
    def end(self) -> int:
        """The number of batches."""
        return -(-self._count // self._rows)

    def at(self, position: int) -> list[int]:
        """Return where the windows of a batch begin."""
        start, stop = position * self._rows, min((position + 1) * self._rows, self._count)
        if not 0 <= start < stop:
            raise IndexError(position)
        numbers = range(start, stop) if self._order is None else self._order.at(start, stop).tolist()
        return [self._shift + number * self._context for number in numbers]

    def after(self, position: int) -> int:
        """Return the next position."""
        return position + 1

    def total(self) -> int:
        """Return the number of batches."""
        return self.end

    def fingerprint(self) -> str:
        """Return a sha256 of what determines the batches."""
        return sha256(self._key.encode()).hexdigest()

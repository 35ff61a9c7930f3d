"""The tokens of a text, in memory or on disk; training reads windows of them."""

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.batches import in_batches
from qkv.data.choices import WindowOrder
from qkv.data.permutation import Permutation
from qkv.data.text import window_shift, windows
from qkv.data.tokenizer import Tokenizer
from qkv.tasks.corpora.manifest import VALID_TEXT, Shard
from qkv.tasks.corpora.prepared import PreparedCorpus, mapped


class TextInMemory(NamedTuple):
    r"""A text as tokens in memory.

    Attributes:
        ids: (N,), int64.
        characters: number of characters in all tokens but the first.
        unknown: number of unknown tokens.
        tokenizer: of the tokens.

    Example:
        >>> text = TextInMemory.of("ab\nbcb", Tokenizer.learn(["abc\n"], "char"))
        >>> text.ids.tolist(), text.take([0, 2], 3).tolist(), text.lines([0, 2, 3])
        ([5, 6, 4, 6, 7, 6], [[5, 6, 4, 6], [4, 6, 7, 6]], [1, 1, 2])
    """

    ids: Tensor
    characters: int
    unknown: int
    tokenizer: Tokenizer

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> "TextInMemory":
        """Tokenize a text."""
        ids = tokenizer.encode(text)
        numbers = torch.tensor(ids, dtype=torch.int64, device="cpu")  # (N,)
        characters = len(text) - len(tokenizer.decode(ids[:1]))
        return cls(numbers, characters, int((numbers == tokenizer.unk).sum()), tokenizer)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.ids)

    def take(self, starts: Sequence[int], context: int) -> Tensor:
        """Cut windows with the token before each, (len(starts), context + 1)."""
        return self.ids[torch.tensor(list(starts), device="cpu")[:, None] + torch.arange(context + 1, device="cpu")]

    def batches(self, context: int, rows: int, order: WindowOrder, seed: int, epoch: int) -> list[list[int]]:
        """Return where the windows of each batch of an epoch begin, as `windows` orders them."""
        return in_batches(windows(self.tokens, context, order, seed, epoch), rows)

    def lines(self, starts: Sequence[int]) -> list[int]:
        """Return the line numbers where windows begin."""
        return [1 + self.tokenizer.decode(self.ids[:start].tolist()).count("\n") for start in starts]


@final
class PreparedText:
    """The training text of a prepared corpus, on disk.

    Args:
        corpus: the corpus.
    """

    def __init__(self, corpus: PreparedCorpus) -> None:
        self._corpus = corpus
        shards = corpus.manifest.shards
        self._ends = np.cumsum(np.array([shard.tokens for shard in shards], dtype=np.int64))
        self.tokens = int(self._ends[-1]) if shards else 0
        self.unknown = sum(shard.unknown for shard in shards)

    def take(self, starts: Sequence[int], context: int) -> Tensor:
        """Read windows with the token before each.

        Args:
            starts: where each window begins.
            context: number of tokens that each window predicts.

        Returns:
            (len(starts), context + 1), int64.

        Raises:
            DataError: a file on disk was altered.
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
        """Return where the windows of each batch of an epoch begin, "random" by a keyed permutation: none is listed.

        Args:
            context: tokens that a window predicts.
            rows: windows in a batch.
            order: "random" or "sequential".
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

    def held_out(self) -> tuple[TextInMemory, str]:
        """Return the text that was held out, and the sha256 of its file.

        Raises:
            DataError: the file was altered.
        """
        corpus, shard = self._corpus, self._corpus.manifest.valid
        assert isinstance(shard, Shard)
        ids = mapped(corpus.folder / VALID_TEXT, shard.ids, np.dtype(f"<u{corpus.manifest.width}"))
        corpus.expect_ids(ids, corpus.tokenizer.size)
        held_out = torch.from_numpy(ids.astype(np.int64))
        return TextInMemory(held_out, shard.characters, shard.unknown, corpus.tokenizer), shard.ids.sha256


TextCorpus = TextInMemory | PreparedText
"""A text as tokens, in memory or on disk."""


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

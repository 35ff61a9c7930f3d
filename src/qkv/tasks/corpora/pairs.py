"""Training pairs, in memory or on disk; training reads them in batches of about equal length."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches import FRAME, Example, cut_batches, expect_fitting, in_batches, token_batches
from qkv.data.permutation import Permutation
from qkv.data.tokenizer import Tokenizer
from qkv.errors import DataError, Place
from qkv.tasks.corpora.manifest import AGAIN, index_name
from qkv.tasks.corpora.prepared import PreparedCorpus
from qkv.tasks.notes import counted
from qkv.tasks.tokenizing import Unknown

WINDOW = 1 << 16
"""Pairs among which batches are made by length."""
_PART = 1 << 20
"""Pairs whose lengths are in memory at once."""


class PairLengths(NamedTuple):
    """Tokens of the sides of pairs, (N,) each, without `bos` and `eos`."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


@final
@dataclass(frozen=True)
class PairsInMemory:
    """Pairs in memory.

    Args:
        examples: the pairs.
        tokenizer: of their tokens; ids beyond its size are words that a model can copy.
    """

    examples: list[Example]
    tokenizer: Tokenizer

    @property
    def target_tokens(self) -> int:
        """The tokens of all targets, with their ends."""
        return sum(len(example.target) + 1 for example in self.examples)

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.examples)

    def take(self, numbers: Sequence[int]) -> list[Example]:
        """Return pairs by their numbers, with their line number as `index`."""
        return [self.examples[number] for number in numbers]

    def lengths(self) -> Iterable[PairLengths]:
        """Yield the lengths of all pairs."""
        sides = ([len(example.source) for example in self.examples], [len(example.target) for example in self.examples])
        yield PairLengths(*(np.array(side, dtype=np.int64) for side in sides))

    def batches(self, tokens: int, seed: int, epoch: int, rows: int | None = None) -> list[list[int]]:
        """Group the pairs of an epoch by length, as `token_batches` does."""
        return token_batches(self.examples, tokens, seed, epoch, rows)

    def count_unknown(self, part: str) -> list[Unknown]:
        """Return how many tokens of each side are unknown, without those that a model can copy."""
        ours = self.tokenizer
        names = ("tokenizer",) * 2 if ours.shared else ("source_tokenizer", "target_tokenizer")
        return [
            Unknown.of(f"{part} sources", (example.source for example in self.examples), ours.source.unk, names[0]),
            Unknown.of(f"{part} targets", (example.target for example in self.examples), ours.unk, names[1]),
        ]

    def right_to_left(self) -> "PairsInMemory":
        """Return the same pairs with the tokens of targets right to left."""
        return replace(self, examples=[replace(example, target=example.target[::-1]) for example in self.examples])


@final
class PreparedPairs:
    """The training pairs of a prepared corpus, on disk.

    Args:
        corpus: the corpus.
        right_to_left: whether targets are read right to left.
    """

    def __init__(self, corpus: PreparedCorpus, *, right_to_left: bool = False) -> None:
        self.corpus, self._right_to_left = corpus, right_to_left
        shards = corpus.manifest.shards
        self._ends = np.cumsum(np.array([shard.pairs for shard in shards], dtype=np.int64))
        self.target_tokens = sum(shard.targets + shard.pairs for shard in shards)
        self._widest = max((shard.widest for shard in shards), default=0)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def count_unknown(self, part: str) -> list[Unknown]:
        """Return how many tokens are unknown, which the manifest counts over both sides."""
        shards = self.corpus.manifest.shards
        unknown, total = sum(shard.unknown for shard in shards), sum(shard.tokens for shard in shards)
        return [Unknown(f"{part} pairs", unknown, total)]

    def right_to_left(self) -> "PreparedPairs":
        """Return the same pairs with the tokens of targets right to left."""
        return PreparedPairs(self.corpus, right_to_left=not self._right_to_left)

    def take(self, pair_numbers: Sequence[int]) -> list[Example]:
        """Read pairs.

        Args:
            pair_numbers: their numbers.

        Returns:
            The pairs as tokens, with their line number, counted over all files, as `index`.

        Raises:
            DataError: a file was altered.
        """
        examples: dict[int, Example] = {}
        for number, selected, local in self._grouped(np.array(pair_numbers, dtype=np.int64)):
            ids, rows, line = (
                self.corpus.ids(number),
                self._rows(number, local),
                self.corpus.manifest.shards[number].line,
            )
            for index, (start, source, target, offset) in zip(selected.tolist(), rows.tolist(), strict=True):
                tokens = ids[start : start + source + target].tolist()
                written = tokens[source:][::-1] if self._right_to_left else tokens[source:]
                examples[index] = Example(tuple(tokens[:source]), tuple(written), line + offset)
        tokenizer = self.corpus.tokenizer
        batch = [examples[index] for index in range(len(pair_numbers))]
        for size, sides in ((tokenizer.source.size, "source"), (tokenizer.size, "target")):
            self.corpus.expect_ids(
                np.array([n for example in batch for n in getattr(example, sides)], dtype=np.int64), size
            )
        return batch

    def lengths_of(self, pair_numbers: NDArray[np.int64]) -> PairLengths:
        """Return the lengths of some pairs, one shard in memory at a time."""
        lengths = PairLengths(np.empty(len(pair_numbers), np.int64), np.empty(len(pair_numbers), np.int64))
        for number, selected, local in self._grouped(pair_numbers):
            rows = self._rows(number, local)
            lengths.source[selected], lengths.target[selected] = rows[:, 1], rows[:, 2]
        return lengths

    def lengths(self) -> Iterator[PairLengths]:
        """Yield the lengths of all pairs, part by part."""
        for start in range(0, len(self), _PART):
            yield self.lengths_of(np.arange(start, min(start + _PART, len(self)), dtype=np.int64))

    def batches(self, tokens: int, seed: int, epoch: int, rows: int | None = None) -> "PairBatches":
        """Group the pairs of an epoch by length, among `WINDOW` pairs of a computed order.

        Args:
            tokens: maximum number of ids, padding, `bos` and `eos` included, in a batch's source and in its target.
            seed: random seed of the order.
            epoch: number of the epoch, from 0.
            rows: number of pairs in a batch, whatever their size; None for as many as `tokens` allows.

        Raises:
            ConfigError: a pair is longer than `tokens`.
        """
        if rows is None:
            expect_fitting(tokens, self._widest, "the longest pair")
        return PairBatches(self, tokens, rows, f"{self.corpus.manifest.digest}:{seed}:{epoch}")

    def _grouped(self, pair_numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Group numbers of pairs by shard: which of them are in it, and their numbers within it."""
        homes = np.searchsorted(self._ends, pair_numbers, side="right")
        order = np.argsort(homes, kind="stable")
        numbers, firsts = np.unique(homes[order], return_index=True)
        for number, selected in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            begin = int(self._ends[number]) - self.corpus.manifest.shards[number].pairs
            yield number, selected, pair_numbers[selected] - begin

    def _rows(self, number: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where pairs of a shard are, checked."""
        rows = self.corpus.index(number)[local].astype(np.int64)
        end = self.corpus.manifest.shards[number].tokens
        if rows.size and int(rows[:, :3].sum(1).max()) > end:
            path = self.corpus.folder / index_name(number)
            raise DataError(Place(path), f"pairs within {end:,} tokens", "one beyond", AGAIN)
        return rows


PairCorpus = PairsInMemory | PreparedPairs
"""Pairs as tokens, each with a number from 0, in memory or on disk."""


@final
class PairBatches:
    """Batches of pairs: those of the window w have the positions w·2^16 and on.

    Args:
        pairs: the pairs.
        tokens: maximum number of ids in a batch's source and in its target.
        rows: number of pairs in a batch; None for as many as `tokens` allows.
        key: of the order; another key gives another order.
    """

    def __init__(self, pairs: PreparedPairs, tokens: int, rows: int | None, key: str) -> None:
        self._pairs, self._tokens, self._count = pairs, tokens, rows
        self._key = f"pairs:{tokens}:{rows}:{key}"
        self._order = Permutation(max(1, len(pairs)), self._key)
        self._window: tuple[int, list[list[int]]] = (-1, [])

    @property
    def end(self) -> int:
        """A number beyond the positions of the last window."""
        return -(-len(self._pairs) // WINDOW) * WINDOW

    def at(self, position: int) -> list[int]:
        """Return the numbers of the pairs of a batch."""
        window, number = divmod(position, WINDOW)
        if not 0 <= position < self.end:
            raise IndexError(position)
        return self._batches(window)[number]

    def after(self, position: int) -> int:
        """Return the position of the next batch, which can be in the next window."""
        window, number = divmod(position, WINDOW)
        return position + 1 if number + 1 < len(self._batches(window)) else (window + 1) * WINDOW

    def total(self) -> int:
        """Return the number of batches: every window is looked through."""
        windows = [[window] for window in range(self.end // WINDOW)]
        return sum(len(self._batches_of(window)) for (window,) in counted(windows))

    def fingerprint(self) -> str:
        """Return a sha256 of what determines the batches."""
        return sha256(self._key.encode()).hexdigest()

    def _batches(self, window: int) -> list[list[int]]:
        if self._window[0] != window:
            self._window = (window, self._batches_of(window))
        return self._window[1]

    def _batches_of(self, window: int) -> list[list[int]]:
        """Group the pairs of a window by length, and put the batches into a random order."""
        start = window * WINDOW
        pair_numbers = self._order.at(start, min(start + WINDOW, len(self._pairs))).astype(np.int64)
        source, target = self._pairs.lengths_of(pair_numbers)  # (N,) each
        widths = np.maximum(source, target + FRAME)
        # The order of the numbers decides between equal lengths: it is random already.
        order = np.lexsort((source + target, widths)).tolist()
        if self._count is None:
            grouped = cut_batches(order, widths.tolist(), self._tokens)
        else:
            grouped = in_batches(order, self._count)
        shuffled = Permutation(len(grouped), f"{self._key}:{window}").at(0, len(grouped)).tolist()
        numbers = pair_numbers.tolist()
        batches: list[list[Any]] = [[numbers[index] for index in grouped[batch]] for batch in shuffled]
        return batches

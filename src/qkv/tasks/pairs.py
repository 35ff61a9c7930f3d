"""Pairs of texts: where they come from, and which of them are held out."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from qkv.data.columns import TextColumns
from qkv.data.corpus import SOURCE_NAMES, TARGET_NAMES, Lines, Pair, read_pairs, read_tsv
from qkv.data.exchanged import JUDGED, exchanged_message, find_exchanged
from qkv.data.hints import text_messages
from qkv.data.holdout import hold_out, seen_in_training, split
from qkv.data.odd_lines import without_odd_lines
from qkv.data.report import collecting, leaves_out, skips
from qkv.data.word_table import WordTable
from qkv.errors import ConfigError, DataError, Place, brief, joined, setting
from qkv.settings import defaults_of
from qkv.tasks.folds import Examples
from qkv.tasks.notes import reporting, state
from qkv.tasks.python_values import as_source, pair_line, text_line

Line = Callable[[Any, str], str]
_KNOWN = SOURCE_NAMES, TARGET_NAMES


class PairSources(NamedTuple):
    """Where pairs come from: `source` and `target`, or `data`.

    Attributes:
        source, target: line N of one corresponds to line N of the other.
        data: lines of both, with a tab between them.
        prefix: what precedes the names of these settings, "valid_" for validation data.
        columns: of `data`.
    """

    source: Path | Lines | None = None
    target: Path | Lines | None = None
    data: Path | Lines | None = None
    prefix: str = ""
    columns: TextColumns = TextColumns(("source", "target"))

    @classmethod
    def of(cls, files: Any, prefix: str = "", side: Line = text_line, pair: Line = pair_line) -> "PairSources | None":
        """Return the sources of a table of settings.

        Args:
            files: a table with `source`, `target` and `data`, which are files or values, and `texts`, their columns.
            prefix: "valid_" for those to validate on.
            side: writes a source or a target as a line, see `qkv.tasks.python_values`.
            pair: writes a pair as a line.

        Returns:
            The sources; None if the table has none.
        """
        items = {name: getattr(files, prefix + name) for name in ("source", "target", "data")}
        if all(item is None for item in items.values()):
            return None
        lines = {"source": side, "target": side, "data": pair}
        sources = {
            name: None if item is None else as_source(item, prefix + name, lines[name], files.texts, _KNOWN)
            for name, item in items.items()
        }
        return cls(**sources, prefix=prefix, columns=files.texts)

    @property
    def names(self) -> tuple[str, str]:
        """The names of what holds the sources and the targets, for messages."""
        return (str(self.data), str(self.data)) if self.data is not None else (str(self.source), str(self.target))

    def read(self, table: WordTable | None = None, others: Sequence[Pair] = ()) -> list[Pair]:
        """Read the pairs, and report what is odd in them.

        Args:
            table: the columns of `data`, if it is a table of symbols.
            others: pairs that have the same direction, if any: those to train on beside those to validate on.

        Returns:
            The pairs.

        Raises:
            DataError: the data is invalid; the message gives file and line.
            ConfigError: files are missing, or too many are given.
        """
        source, target, data = self.source, self.target, self.data
        if data is not None and source is None and target is None:
            if table is not None:
                pairs = table.read(data)
            elif self.columns.applies(data):
                rows = self.columns.read(data, _KNOWN)
                pairs = [Pair(left, right, line) for line, left, right in rows]
            else:
                pairs = read_tsv(data, say=state)
            return _with_warnings(pairs, str(data), others)
        if table is not None:
            got = "two files" if source or target else "no file"
            hint = "Columns are those of one TSV file."
            raise ConfigError(self._name("data"), "one TSV file, whose columns are given", got, hint)
        if source is not None and target is not None and data is None:
            return _with_warnings(read_pairs(source, target), f"{source} and {target}", others)
        present = [name for name in ("source", "target", "data") if getattr(self, name) is not None]
        files = [self._name(side, "FILE") for side in ("source", "target")]
        raise ConfigError(
            self._name("source"),
            joined(" and ", files) + ", or " + self._name("data", "FILE.tsv"),
            joined(" and ", list(map(self._name, present))) or "none of them",
            "Two files with one sentence per line, or one file with source<TAB>target on each line.",
        )

    def _name(self, name: str, value: str | None = None) -> str:
        return setting(self.prefix + name, value)


def _with_warnings(pairs: list[Pair], name: str, others: Sequence[Pair]) -> list[Pair]:
    """Return the pairs, after reporting exchanged, odd and copied ones, and sides that never vary."""
    pairs = _in_order(pairs, name, others)
    lines, sources, targets = (list(map(attrgetter(part), pairs)) for part in ("line", "source", "target"))
    for oddity in text_messages(lines, sources, targets):
        state(f"{name}: {oddity}")
    if len(pairs) > 1 and all(pair.source == pair.target for pair in pairs):
        state(f"{name}: every target equals its source.")
    for side, texts in (("source", sources), ("target", targets)):
        if len(pairs) > 1 and all(text == texts[0] for text in texts):
            all_texts = f'all {len(pairs):,} {side}s are "{brief(texts[0])}"'
            state(f"{name}: {all_texts}: nothing can be learned from them.")
    return without_odd_lines(name, pairs, lines, sources, targets, paired=True)


def _in_order(pairs: list[Pair], name: str, others: Sequence[Pair]) -> list[Pair]:
    """Report exchanged pairs, and return the pairs without those that are to be left out."""
    if not collecting():
        if (message := exchanged_message(pairs, others)) is not None:
            state(f"{name}: {message}")
        return pairs
    exchanged, judged = find_exchanged(pairs, others, len(pairs) if skips("swapped") else JUDGED)
    example = f'"{brief(exchanged[0].source)}" has the target "{brief(exchanged[0].target)}"' if exchanged else ""
    example += f"; {judged:,} lines were judged" if judged < len(pairs) else ""
    dropped = {pair.line for pair in exchanged}
    if not leaves_out("swapped", name, [pair.line for pair in exchanged], example):
        return pairs
    return [pair for pair in pairs if pair.line not in dropped]


def pair_examples(files: Any, side: Line = text_line, pair: Line = pair_line) -> Examples:
    """Return the pairs of a table of settings as examples to divide, those with one source together.

    Args:
        files: as for `read_training_pairs`.
        side, pair: turn Python values into lines.

    Raises:
        ConfigError: there are no such files.
        DataError: a file is invalid, or a text has a tab, which a line of a part cannot have.
    """
    with reporting(files.skip):
        sources = PairSources.of(files, "", side, pair) or PairSources()
        pairs = sources.read()
        for item in pairs:
            if "\t" in item.source + item.target:
                hint = "Replace it by a space."
                raise DataError(Place(sources.names[0], item.line), "texts without tabs to divide", "a tab", hint)

    def write(indices: Sequence[int]) -> str:
        return "".join(f"{pairs[index].source}\t{pairs[index].target}\n" for index in indices)

    usual = defaults_of(type(files))
    read = {name: usual[name] for name in usual if name in ("source", "target", "sep") or name.endswith("_col")}
    return Examples([item.source for item in pairs], [""] * len(pairs), write, ".tsv", read)


class TrainingPairs(NamedTuple):
    """Pairs to train on, pairs to validate on, and the names of what holds the sources and targets of either."""

    train: list[Pair]
    valid: list[Pair]
    names: tuple[str, str]
    valid_names: tuple[str, str]


def read_training_pairs(
    files: Any,
    seed: int,
    *,
    table: WordTable | None = None,
    count: int | None = None,
    names: tuple[str, str] = ("pairs", "sources"),
    side: Line = text_line,
    pair: Line = pair_line,
) -> TrainingPairs:
    """Read the pairs of a table of settings; validation pairs that it does not give are chosen among the others.

    Args:
        files: has `source`, `target` and `data`, and the same after `valid_`.
        seed: of the choice.
        table: the columns of a TSV file; None for two.
        count: how many pairs to choose; None for the usual share.
        names: what pairs and sources are called.
        side, pair: turn Python values into lines.

    Raises:
        ConfigError: not exactly one of two files and one file is given, or too few pairs remain.
        DataError: a file is invalid.
    """
    sources = PairSources.of(files, "", side, pair) or PairSources()
    pairs = sources.read(table)
    valid_sources = PairSources.of(files, "valid_", side, pair)
    if valid_sources is None:
        return TrainingPairs(*divided(pairs, seed, count, names), sources.names, sources.names)
    valid = valid_sources.read(table, pairs)
    message = seen_in_training(
        (pair.source for pair in pairs), [pair.source for pair in valid], f"validation {names[1]}"
    )
    if message is not None:
        state(message)
    return TrainingPairs(pairs, valid, sources.names, valid_sources.names)


def divided(
    pairs: Sequence[Pair],
    seed: int,
    count: int | None = None,
    names: tuple[str, str] = ("pairs", "sources"),
    when: str = "",
) -> tuple[list[Pair], list[Pair]]:
    """Choose validation pairs among the training pairs, and report an unusual choice on standard error.

    Args:
        pairs: all pairs.
        seed: random seed.
        count: minimum number of pairs to hold out; None for the default of `qkv.data.holdout.split`.
        names: what pairs and their sources are called.
        when: as for `qkv.data.holdout.split`.

    Returns:
        The training and the validation pairs.

    Raises:
        ConfigError: there are not so many pairs to hold out.
    """
    if count is None:
        parts = attrgetter("source", "target")
        train, valid, message = split(pairs, seed, parts=parts, names=names, when=when)
    else:
        train, valid = hold_out(pairs, count, seed, when)
        message = ""
        if len(valid) >= 2 * count:
            message = (
                f"{len(valid):,} {names[0]} are held out, not {count:,}: those with the same source stay together."
            )
            # Pairs that a prepared corpus leaves out cannot be trained on.
            message += "" if when else f" Give validation {names[0]} to train on all of them."
    if message:
        state(message)
    return train, valid

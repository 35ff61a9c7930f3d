"""`qkv align`: files of sentences to files of links, by one model or two that agree."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from torch import Tensor

from qkv.data.corpus import read_lines, read_pairs
from qkv.errors import ConfigError, DataError, error_message
from qkv.metrics.alignment import (
    Link,
    Links,
    alignment_error_rate,
    alignment_precision,
    alignment_recall,
    parse_alignments,
)
from qkv.tasks.aligning import WAYS, Aligner, Sentences, join, likeliest
from qkv.tasks.reading import Reading, When
from qkv.tasks.translator import Translator


class Three(NamedTuple):
    """Files that belong together line by line: sources, targets, and links made by hand."""

    source: Path | None
    target: Path | None
    gold: Path | None


class Chosen(NamedTuple):
    """A reading by the user's own choice; no layer where there is none."""

    layer: str | None
    head: int | None
    when: str | None


@dataclass(frozen=True)
class Aligned:
    """What was found.

    Args:
        pairs: the sentences.
        links: of each.
        said: what is to be told: the readings, and the figures.
    """

    pairs: list[Sentences]
    links: list[set[Link]]
    said: list[str]

    def as_pharaoh(self) -> list[str]:
        """Lines such as "0-0 1-2"."""
        return [" ".join(f"{source}-{target}" for source, target in sorted(found)) for found in self.links]

    def as_json(self) -> list[str]:
        """One object for each pair: its words and its links."""
        return [
            json.dumps(
                {"source": pair.source.split(), "target": pair.target.split(), "links": sorted(found)},
                ensure_ascii=False,
            )
            for pair, found in zip(self.pairs, self.links, strict=True)
        ]


def align_files(
    run: Path, reverse: Path | None, files: Three, valid: Three, chosen: Chosen, how: str, device: str
) -> Aligned:
    """Align the sentences of two files.

    Args:
        run: a translation model.
        reverse: one of the other direction, or None.
        files: what to align; where there are links by hand the error is told.
        valid: sentences with links by hand on which layer, head and step are chosen; all or none.
        chosen: a reading in place of that.
        how: the two directions become one.
        device: where to compute.

    Returns:
        The links.

    Raises:
        ConfigError: files or settings that do not belong together.
        DataError: a file cannot be used; names file and line.
        CheckpointError: a model cannot be used.
    """
    for name, given in (("--head", chosen.head), ("--when", chosen.when)):
        if given is not None and chosen.layer is None:
            hint = "Name the layer too, or give --valid-source, --valid-target and --valid-gold to choose all three."
            raise ConfigError(error_message(name, "--layer beside it", "none", hint))
    if chosen.layer is not None and any(valid):
        hint = "Either name the layer, or let these sentences choose it."
        raise ConfigError(error_message("--layer", "no --valid-source beside it", "both", hint))
    if how not in WAYS:
        join(how, (), ())
    pairs, gold = _read(files, "--")
    trial = _read(valid, "--valid-") if any(valid) else None
    there, said = _one_direction(Aligner(Translator.load(run, device)), pairs, trial, chosen, "")
    if reverse is None:
        found = [likeliest(weights) for weights in there]
    else:
        turned = [Sentences(pair.target, pair.source) for pair in pairs]
        turned_trial = None if trial is None else ([Sentences(t, s) for s, t in trial[0]], _turned(trial[1] or []))
        other = Aligner(Translator.load(reverse, device))
        back, more = _one_direction(other, turned, turned_trial, chosen, "reverse: ")
        found = join(how, there, back)
        said += more
    if gold is not None:
        figures = (alignment_error_rate, alignment_precision, alignment_recall)
        said += [str(figure(found, gold)) for figure in figures]
    return Aligned(pairs, found, said)


def _one_direction(
    aligner: Aligner,
    pairs: Sequence[Sentences],
    trial: tuple[Sequence[Sentences], list[Links] | None] | None,
    chosen: Chosen,
    prefix: str,
) -> tuple[list[Tensor], list[str]]:
    if chosen.layer is not None:
        reading, why = Reading(chosen.layer, chosen.head, cast("When", chosen.when or "at")), "as asked"
    elif trial is not None and trial[1] is not None:
        reading, figure = aligner.choose(trial[0], trial[1])
        why = f"{figure.value:.2f} % alignment error on the validation sentences"
    else:
        reading, why = aligner.default, "by default"
    return aligner.weights(pairs, reading), [f"{prefix}read from {reading}: {why}"]


def _read(files: Three, prefix: str) -> tuple[list[Sentences], list[Links] | None]:
    if files.source is None or files.target is None:
        given = [f"{prefix}{name}" for name, path in zip(files._fields, files, strict=True) if path is not None]
        expected = f"{prefix}source FILE and {prefix}target FILE"
        hint = "Two files, line N of one the translation of line N of the other."
        raise ConfigError(error_message(f"{prefix}source", expected, " and ".join(given) or "none of them", hint))
    pairs = [Sentences(pair.source, pair.target) for pair in read_pairs(files.source, files.target)]
    if files.gold is None:
        if prefix == "--":
            return pairs, None
        hint = "Links are chosen by their error against those made by hand."
        raise ConfigError(error_message("--valid-gold", "--valid-gold FILE", "none", hint))
    gold = parse_alignments(read_lines(files.gold, blank=True), str(files.gold))
    if len(gold) != len(pairs):
        got = f"{len(gold):,} for {len(pairs):,} sentences"
        raise DataError(
            error_message(str(files.gold), "links for each sentence", got, "One line for each, maybe empty.")
        )
    return pairs, gold


def _turned(gold: Sequence[Links]) -> list[Links]:
    return [
        Links(frozenset((j, i) for i, j in each.sure), frozenset((j, i) for i, j in each.possible)) for each in gold
    ]

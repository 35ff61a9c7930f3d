"""The settings of `qkv align`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from qkv.errors import ConfigError, setting
from qkv.settings import Option, options_of
from qkv.tasks.settings import PICTURES, DeviceSettings, ShardSettings, TextPairColumns
from qkv.tasks.translate.settings import ReadingSettings, Symmetrization


@dataclass(frozen=True, kw_only=True)
class AlignSettings(ReadingSettings, TextPairColumns, ShardSettings, DeviceSettings):
    """Write the alignment links of each line to standard output, source word first, counted from 0 (Pharaoh format).

    Example: qkv align runs/en-fr --source test.en --target test.fr --gold test.align
    """

    as_trained = frozenset(options_of(TextPairColumns))

    source: Annotated[Path | None, Option("Source sentences, words separated by spaces")] = None
    target: Annotated[Path | None, Option("Their translations, line by line")] = None
    data: Annotated[
        Path | None,
        Option("Or one table of both, with the columns of the training; words of a table of symbols are the symbols"),
    ] = None
    reverse: Annotated[Path | None, Option("Run folder of a model of the other direction")] = None
    symmetrize: Annotated[Symmetrization, Option("With --reverse: how links of both directions are joined")] = "mutual"
    gold: Annotated[Path | None, Option("Manual alignments, to report the error rate")] = None
    gold_from: Annotated[
        int, Option("Number of a sentence's first word in the manual alignments, 0 or 1", least=0, below=2)
    ] = 0
    attention: Annotated[
        Path | None,
        Option("Also draw the weights between the words: FILE.html, FILE.svg, FILE.png or FILE.pdf", writes=PICTURES),
    ] = None
    valid_source: Annotated[Path | None, Option("Sentences for choosing layer and head")] = None
    valid_target: Annotated[Path | None, Option("Their translations")] = None
    valid_data: Annotated[Path | None, Option("Or one TSV file")] = None
    valid_gold: Annotated[
        Path | None, Option("Their manual alignments; without them, agreement with IBM Model 1 decides")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gold_from and self.gold is None and self.valid_gold is None:
            hint = "It says how they count words."
            expected = setting("gold") + " or " + setting("valid_gold") + " as well"
            raise ConfigError("gold_from", expected, "neither", hint)
        self.expect_both("source", "target", "data", "gold", "attention")

"""The settings of `qkv prepare`. It imports nothing large, because the command reads it when it starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from qkv.data.choices import HELD_OUT, Missing
from qkv.settings import Option, check
from qkv.tasks.settings import TaskSettings
from qkv.tasks.translate.settings import TranslateTokenizer


@dataclass(frozen=True, kw_only=True)
class PrepareFiles:
    """What is prepared, and how it is divided.

    Raises:
        ConfigError: a value is outside its range.
    """

    pairs: Annotated[bool, Option("Files hold pairs: source<TAB>target on each line, or two fields of JSON")] = False
    source: Annotated[Path | None, Option("Or two files of pairs, line by line: sources (.gz too)")] = None
    target: Annotated[Path | None, Option("Their translations")] = None
    field: Annotated[str, Option("Field of a text in files named .jsonl; dots lead into objects")] = "text"
    source_field: Annotated[str, Option("Field of a source in files named .jsonl")] = "source"
    target_field: Annotated[str, Option("Field of a target in files named .jsonl")] = "target"
    holdout: Annotated[
        int | None,
        Option(
            "Lines at the end of the text, or pairs, to hold out for validation",
            least=1,
            or_else=HELD_OUT,
        ),
    ] = None
    longest: Annotated[int, Option("Maximum length of a side of a pair", "tokens", least=1)] = 256
    too_long: Annotated[Missing, Option("Longer pairs")] = "refuse"
    sample: Annotated[
        float, Option("Text from which tokenizer and held-out pairs are chosen, drawn by the seed", "MiB", above=0)
    ] = 32.0
    seed: Annotated[int, Option("Random seed of the sample", least=0)] = 0
    shard_size: Annotated[float, Option("Text in each shard", "MiB", above=0)] = 32.0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """What the command has besides the settings of the corpus."""

    out: Annotated[Path | None, Option("The folder of the corpus. Run the same command again to continue.")] = None
    tokenizer_from: Annotated[Path | None, Option("Use the tokenizer of a run, of any task.")] = None
    processes: Annotated[int, Option("Processes that tokenize.", least=1)] = 1


PREPARE = TaskSettings(
    "prepare",
    """Prepare a corpus that is larger than memory: tokenized shards on disk, from which trainings read.

    Files are plain text or JSON lines (named .jsonl), also compressed (.gz).

    Example: qkv prepare corpus/*.txt.gz --out corpus --processes 4
    """,
    {"data": PrepareFiles, "tokenizer": TranslateTokenizer},
)

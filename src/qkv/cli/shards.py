"""`--shards` and `--out`: answer files in place of standard input, with any number of processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.failure import report_failure
from qkv.errors import ConfigError, on_command_line, setting

if TYPE_CHECKING:
    from qkv.tasks.shards import Shards

_PANEL = "Batch work"
Pattern = Annotated[
    str | None,
    typer.Option(
        "--shards",
        metavar="PATTERN",
        help="Answer these files, as 'in/*.txt' in quotes. Any number of processes can run the same command.",
        rich_help_panel=_PANEL,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="With --shards: the folder of the answers.", rich_help_panel=_PANEL),
]


def expect_shards(pattern: str | None, out: Path | None, others: Mapping[str, object]) -> "Shards | None":
    """Find the shards that flags name.

    Args:
        pattern, out: the two flags.
        others: flags that do not apply to shards, by name.

    Returns:
        The shards; None for standard input.

    Raises:
        ConfigError: one of the two flags is missing, one of the others is given, or there are no such files.
    """
    from qkv.tasks.shards import Shards

    if pattern is None:
        if out is not None:
            got, hint = f"no {setting('shards')}", "It is the folder of the answers to shards."
            raise ConfigError("out", f"{setting('shards')} as well", got, hint)
        return None
    if out is None:
        hint = "It is the folder of the answers, which processes share."
        raise ConfigError("shards", f"{setting('out')} as well", f"no {setting('out')}", hint)
    for name, value in others.items():
        if value:
            hint = "Omit it, or give one file without shards."
            raise ConfigError(name, f"no {setting('shards')} beside it", "both", hint)
    return Shards.of(pattern, out)


def answer_shards(
    shards: "Shards",
    what: str,
    work: Mapping[str, Any],
    runs: Sequence[Path],
    answer: Callable[[Iterable[list[str]], Path], Iterator[str]],
    *,
    average: int = 1,
    tabs: bool = False,
) -> None:
    """Answer the lines of shards.

    Args:
        shards: the shards.
        what: what is done to them, as in "translated".
        work: the settings; None for one that is not given.
        runs: the models.
        answer: yields the answers to the parts of a file as text.
        average: how many of the newest checkpoints of each run are averaged; 1 uses the best one.
        tabs: whether lines may have columns; otherwise the first tab is reported.

    Raises:
        QkvError: a shard cannot be answered; the others are.
    """
    from qkv.data.corpus import in_parts, stream_lines
    from qkv.tasks.answering import reporting_tabs
    from qkv.tasks.shards import model_digest

    def answers(source: Path) -> Iterator[str]:
        lines = stream_lines(source) if tabs else reporting_tabs(stream_lines(source), str(source))
        return answer(in_parts(lines, size=len), source)

    finish_shards(shards, what, {**work, "model": model_digest(runs, average)}, answers)


def finish_shards(
    shards: "Shards", what: str, work: Mapping[str, Any], answer: Callable[[Path], Iterable[str]]
) -> None:
    """Answer shards file by file; arguments and errors as for `answer_shards`, but `work` names the models too."""
    from qkv.tasks.notes import as_json
    from qkv.tasks.shards import report

    settings = {name: item for name, item in {**work, "json": as_json()}.items() if item is not None}
    result = shards.answer(settings, answer)
    report(what, result)
    for error in result.failed[:-1]:
        report_failure(error.render(on_command_line))
    if result.failed:
        raise result.failed[-1]

"""`--shards` and `--out`: answer files in place of standard input, with any number of processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.failure import report_failure
from qkv.errors import on_command_line
from qkv.tasks.settings import ShardSettings

if TYPE_CHECKING:
    from qkv.tasks.answering import Answers
    from qkv.tasks.shards import Shards


def shards_of(settings: ShardSettings) -> "Shards | None":
    """Return the shards that settings name; None for standard input.

    Raises:
        ConfigError: there are no such files.
    """
    from qkv.tasks.shards import Shards

    return None if settings.shards is None or settings.out is None else Shards.of(settings.shards, settings.out)


def answer_shards(shards: "Shards", work: Mapping[str, Any], runs: Sequence[Path], answers: "Answers") -> None:
    """Answer the lines of shards.

    Args:
        shards: the shards.
        work: the settings; None for one that is not given.
        runs: the models.
        answers: what answers.

    Raises:
        QkvError: a shard cannot be answered; the others are.
    """
    from qkv.data.corpus import in_parts, stream_lines
    from qkv.tasks.answering import reporting_tabs
    from qkv.tasks.shards import model_digest

    def answer(source: Path) -> Iterator[str]:
        lines = stream_lines(source) if answers.tabs else reporting_tabs(stream_lines(source), str(source))
        return answers.texts(in_parts(lines, size=len), source)

    model = model_digest(runs, work.get("average", 1))
    finish_shards(shards, "answered", {**work, "model": model}, answer)


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

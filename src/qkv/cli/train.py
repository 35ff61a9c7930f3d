"""`qkv train TASK` and `qkv prepare`: commands made from tables of settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.early_exit import BAD_INPUT
from qkv.cli.failure import guarded
from qkv.cli.flags import commands_of_tasks, flag_of, flagged, read_flag, taken
from qkv.cli.paths import expect_output_files
from qkv.errors import ConfigError
from qkv.settings import defaults_of, hints_of, options_of
from qkv.tasks.prepare.settings import PREPARE, PrepareOptions
from qkv.tasks.settings import COMMON, RUN, START, TOPICS, TaskSettings

if TYPE_CHECKING:
    from qkv.tasks.recipe import AnyRecipe

_PREPARED, _CORPUS = "prepared", "corpus"
_Corpus = Annotated[
    Path | None, typer.Argument(metavar="PREPARED", help="A corpus that qkv prepare wrote, as --prepared.")
]


def _one_corpus(corpus: Path, flag: Path | None) -> Path:
    if flag is not None:
        raise ConfigError(_PREPARED, "no other corpus beside it", "both", "Omit one of them.")
    return corpus


def flags_of(task: TaskSettings, *, options: bool = True) -> dict[str, Any]:
    """Return the flags of a task's training by name, annotated for typer, in the order of the help.

    Args:
        task: the task.
        options: whether those are among them that are no settings.
    """
    flags = [
        (task.topic_of(name), name, flag_of(table, name, task.help_of(name), task.topic_of(name)))
        for table in task.tables.values()
        for name in options_of(table)
    ]
    flags += [(_run_topic(name), name, flag) for name, flag in _run_flags(task.options).items()] if options else []
    order = {topic: index for index, topic in enumerate((*TOPICS, *COMMON))}
    flags.sort(key=lambda item: (order.get(item[0], len(order)), order[item[1]] if item[0] == START else 0))
    return {name: flag for _, name, flag in flags}


def _run_flags(options: type) -> dict[str, Any]:
    return {name: flag_of(options, name, option.help, _run_topic(name)) for name, option in options_of(options).items()}


def _run_topic(name: str) -> str:
    return START if name in COMMON else RUN


def train_command(task: TaskSettings) -> Callable[..., None]:
    """Return the command that trains a task: its flags are the task's settings."""
    positional = {_CORPUS: _Corpus} if _PREPARED in task.table_of else {}

    @flagged(positional | flags_of(task), defaults_of(task.options))
    def train(**flags: Any) -> None:
        if (corpus := flags.pop(_CORPUS, None)) is not None:
            flags[_PREPARED] = _one_corpus(corpus, flags[_PREPARED])
        options = taken(task.options, flags)
        expect_output_files(task.options, options)
        from qkv.tasks.catalog import recipe_of

        train_by_flags(recipe_of(task.name), flags, options)

    train.__doc__ = task.help
    train.__name__ = f"train_{task.name}"
    return guarded(train, task.table_of)


command_of = commands_of_tasks(train_command)


def train_by_flags(recipe: "AnyRecipe", flags: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Train with flags and files: flags override the file, and the file overrides the run that training starts from.

    Args:
        recipe: the task.
        flags: the settings by name; None where they were not given.
        options: what the command has besides, see `qkv.tasks.settings.RunOptions`.
    """
    from qkv.settings import merge, read_toml

    task = recipe.settings
    typed = typed_settings(task, flags)
    file = options["config"]
    _train(recipe, merge({} if file is None else read_toml(file), task.in_tables(typed)), options)


def typed_settings(task: TaskSettings, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what flags say, without those that were not given."""
    return {name: read_flag(hint_of(task, name), item) for name, item in flags.items() if item is not None}


def hint_of(task: TaskSettings, name: str) -> Any:
    """Return the type of a setting."""
    return hints_of(task.tables[task.table_of[name]])[name]


def _train(recipe: "AnyRecipe", tables: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]) -> None:
    from qkv.settings import to_toml
    from qkv.tasks import run
    from qkv.tasks.notes import note, quiet
    from qkv.tasks.overview import summary
    from qkv.tasks.streams import write

    start, tokenizer_from = options.get("start"), options.get("tokenizer_from")
    if options["print_config"]:
        table = recipe.show_settings(run.checked(recipe, tables, start, tokenizer_from)[1])
        write([table], to_toml(table).splitlines())
        return
    outcome = run.train(
        recipe,
        tables,
        options["out"],
        start=start,
        tokenizer_from=tokenizer_from,
        device=options.get("device", "cpu"),
        processes=options.get("processes"),
        tensorboard=options.get("tensorboard", False),
        instead=typer.Exit(BAD_INPUT),
    )
    if options.get("picture") is not None:
        recipe.draw(options["out"], options["picture"])
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
    if outcome.digest and not quiet():  # of several processes the first one's
        for line in summary(outcome, options["out"]):
            note(line)


_FILES = "files"
_Files = Annotated[list[Path] | None, typer.Argument(metavar="FILES...", help="Text, or JSON lines (.jsonl); .gz too.")]


@flagged(
    {_FILES: _Files, **_run_flags(PrepareOptions), **flags_of(PREPARE, options=False)},
    defaults_of(PrepareOptions),
)
def prepare(**flags: Any) -> None:
    """Run `qkv prepare` with its flags: turn text into tokens on disk, for trainings on more than fits in memory."""
    from qkv.tasks.prepare.preparing import Preparation
    from qkv.tasks.streams import write

    files = flags.pop(_FILES) or []
    options = taken(PrepareOptions, flags)
    typed = typed_settings(PREPARE, flags)
    preparation = Preparation.of(files, PREPARE.in_tables(typed), options["tokenizer_from"])
    prepared = preparation.prepare(options["out"], options["processes"])
    write([prepared._asdict()], ())


prepare.__doc__ = PREPARE.help
prepare_command = guarded(prepare, PREPARE.table_of)

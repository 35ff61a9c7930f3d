"""`qkv.check`: read the data of a training, and report all that is wrong or odd in it."""

from typing import Any

from qkv.data.report import Report
from qkv.errors import DataError, expect_name
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.corpora.prepared import with_corpus
from qkv.tasks.notes import Verbosity, use_verbosity, working
from qkv.tasks.recipe import AnyRecipe, Tables
from qkv.tasks.settings import parameters, take_settings


def check_data(recipe: AnyRecipe, tables: Tables) -> Report:
    """Read the data of a training.

    Args:
        recipe: the task.
        tables: settings.

    Returns:
        The report; `Report.expect_usable` raises what a training would.

    Raises:
        ConfigError: a setting is wrong.
    """
    settings = recipe.load_settings(with_corpus(tables, recipe.settings))
    with Report(getattr(settings.data, "skip", ())) as report, working("reading the data"):
        try:
            recipe.inspect(settings)
        except DataError as error:
            report.refused = error
    return report


def check(task: str, *, quiet: bool = False, **settings: Any) -> Report:
    """Read the data of a training, and report all that is wrong or odd in it, as `qkv check TASK` does.

    Args:
        task: "translate", "generate", "classify", "tag", "point" or "regress".
        quiet: whether to show no progress on standard error.
        settings: those of `qkv.train` that determine what is read: files or values, columns, tokenizer, seed, `skip`.

    Returns:
        The report: `findings` with their lines, `facts`, and `refused`, the error that a training would raise. It is
        printed as `qkv check` writes it.

    Raises:
        ConfigError: a setting is unknown (the message suggests the closest one), or its value is invalid.

    Example:
        >>> rows = [("good", "a fine film"), ("bad", ""), ("bad", "a dull one"), ("good", "a fine film")]
        >>> report = check("classify", data=rows)
        >>> print(report)
        data: 3 texts; the longest: line 1 (15 characters), line 4 (15 characters), ...
        data: labels: good (2), bad (1)
        with fewer than 10 different texts (2), no texts are held out: ...
        data: empty: 1 line without text where some belongs, refused: 2: an empty text
        data: duplicates: 1 line equal to an earlier one: 4: "a fine film"
        >>> check("classify", data=rows, skip=["empty"]).refused is None
        True
    """
    task_settings = TASKS[expect_name("task", task, TASKS)]
    task_settings.expect_settings(settings)
    with use_verbosity(Verbosity("quiet" if quiet else "normal")):
        return check_data(recipe_of(task), task_settings.in_tables(settings))


_NAMES = {name for task in TASKS.values() for name in task.names_of_data}
take_settings(check, [each for each in parameters(TASKS.values()) if each.name in _NAMES])

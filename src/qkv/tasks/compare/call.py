"""`qkv.compare`: compare settings of any task from Python."""

from inspect import Parameter
from pathlib import Path
from typing import Any

from qkv.errors import expect_name
from qkv.files import as_path
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.compare import comparing
from qkv.tasks.compare.comparison import Comparison
from qkv.tasks.compare.settings import NOT_COMPARED, TEST, CompareOptions, files_to_test
from qkv.tasks.notes import Verbosity, use_verbosity
from qkv.tasks.settings import parameters, take_settings


def compare(
    task: str,
    *,
    out: str | Path,
    seeds: int | None = CompareOptions.seeds,
    folds: int | None = CompareOptions.folds,
    controls: bool = CompareOptions.controls,
    device: str = CompareOptions.device,
    quiet: bool = False,
    **settings: Any,
) -> Comparison:
    """Train every combination of settings with several seeds, and rank them, as `qkv compare TASK` does.

    Each training is an ordinary run in the folder; what is complete stays, and the same call again goes on, also beside
    other processes that run it.

    Args:
        task: "translate", "generate", "classify", "tag", "point" or "regress".
        out: the folder of the trainings.
        seeds: how many trainings each combination has, with the seeds from 0 on; None for 3.
        folds: in place of seeds, in how many parts the data of a task but "generate" is divided: each part
            is tested on by a training on all others.
        controls: whether to also train without attention ("none") and with equal weights ("uniform"), where the model
            has them, if scores are compared.
        device: compute device.
        quiet: whether to show no progress on standard error.
        settings: the settings of the task, as for `qkv.train`; a list has the values to compare. Those
            of the task's evaluation that name files, with "test_" before them, name files to test on; without them
            figures are those of the validation, and no p-value is computed.

    Returns:
        The table: a row for each combination, the best first. Ctrl-C returns what is complete.

    Raises:
        ConfigError: a setting is unknown or its value invalid, or no combination is possible.
        CheckpointError: the folder has figures of other settings.
        QkvError: any other bad input; nothing complete is lost.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> table = [(float(x), float(x * x)) for x in range(20)]
        >>> with TemporaryDirectory() as folder:
        ...     comparison = compare("regress", data=table, kernel=["gaussian", "boxcar"], out=folder, quiet=True)
        >>> [row.cell.name for row in comparison.rows]
        ['kernel=gaussian', 'kernel=boxcar']
    """
    task_settings = TASKS[expect_name("task", task, TASKS)]
    tests = {TEST + name for name in files_to_test(task_settings)}
    task_settings.expect_settings(name for name in settings if name not in tests)
    with use_verbosity(Verbosity("quiet" if quiet else "normal")):
        folder = as_path(out, "out")
        return comparing.compare(
            recipe_of(task), settings, folder, seeds=seeds, folds=folds, controls=controls, device=device
        ).comparison


_NAMES = dict.fromkeys(TEST + name for task in TASKS.values() for name in files_to_test(task))
_TESTS = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in _NAMES]
_SEVERAL = [each.replace(annotation=Any) for each in parameters(TASKS.values()) if each.name not in NOT_COMPARED]
take_settings(compare, [*_TESTS, *_SEVERAL])

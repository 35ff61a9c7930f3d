"""Compare combinations of settings: train every cell with every seed, and rank them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.checkpoint.disk import make_folder
from qkv.errors import ConfigError, QkvError, on_command_line, quantity, setting
from qkv.settings import build
from qkv.tasks.compare.comparison import Comparison
from qkv.tasks.compare.grid import cells_of, divided
from qkv.tasks.compare.settings import NOT_COMPARED, SEEDS, TEST, CompareOptions, files_to_test
from qkv.tasks.compare.training import Result, Training, evaluation_of, planned, planned_folds, result_of, train_cell
from qkv.tasks.notes import Verbosity, note, use_verbosity, verbose
from qkv.tasks.recipe import AnyRecipe
from qkv.training.screen import show_figures


class Outcome(NamedTuple):
    """How a comparison ended.

    Attributes:
        comparison: the table of what is complete.
        files: its files; none if nothing is complete.
        interrupted: whether Ctrl-C ended it.
    """

    comparison: Comparison
    files: list[Path]
    interrupted: bool


def compare(
    recipe: AnyRecipe,
    settings: Mapping[str, Any],
    out: Path | None,
    *,
    seeds: int | None = None,
    folds: int | None = None,
    controls: bool = True,
    device: str = "cpu",
) -> Outcome:
    """Train what is missing, and compare what is complete.

    Args:
        recipe: the task.
        settings: by name, and files to test on by names that begin with `TEST`; a list has the values to compare.
        out: the folder of the trainings; the same call again trains what is missing, also beside other processes.
        seeds: how many trainings each cell has, with the seeds from 0 on; None for 3.
        folds: in place of seeds, in how many parts the data is divided for a cross-validation.
        controls: whether to add the controls if scores are compared.
        device: compute device.

    Raises:
        ConfigError: a setting is invalid, or no combination of them is possible.
        CheckpointError: the folder has figures of other settings.
        QkvError: any other bad input; what is complete stays.
    """
    if out is None:
        hint = "For example " + setting("out", "comparison") + ". Run the same command again to go on."
        raise ConfigError(setting("out"), "a folder for the trainings", "none", hint)
    build(CompareOptions, {"seeds": seeds, "folds": folds})
    if folds is not None and seeds is not None:
        hint = "Each part has one training: omit one of them."
        raise ConfigError("seeds", "no " + setting("folds") + " beside it", "both", hint)
    # An iterator gives its items to the first training alone.
    settings = {name: list(item) if isinstance(item, Iterator) else item for name, item in settings.items()}
    fixed = {name: item for name, item in settings.items() if not name.startswith(TEST)}
    for name, hint in NOT_COMPARED.items():
        if name in fixed:
            raise ConfigError(name, "no such setting in a comparison", "one", hint)
    files = {name.removeprefix(TEST): item for name, item in settings.items() if name.startswith(TEST)}
    test = evaluation_of(recipe.settings, files, device, fixed)
    if folds is not None and test is not None:
        hint = "Each part of the data is tested on: omit one of them."
        raise ConfigError("folds", "no files to test on beside it", "both", hint)
    possible, refused = divided(recipe, cells_of(recipe.settings, fixed, controls=controls), fixed)
    for name, error in refused.items():
        note(f"qkv: not trained: {name}: {error}")
    make_folder(out)
    if folds is None:
        trainings = planned(recipe, possible, seeds or SEEDS, fixed, test, out)
    else:
        trainings = planned_folds(recipe, possible, folds, fixed, out, device)
    interrupted = _train(recipe, trainings, device)
    results = [(training, result_of(training)) for training in trainings]
    complete = [
        (cell, {training.seed: result for training, result in results if training.cell is cell and result is not None})
        for cell in possible
    ]
    missing = sum(result is None for _, result in results)
    reasons = {name: str(error) for name, error in refused.items()}
    comparison = Comparison.of(complete, reasons, missing, "seed" if folds is None else "fold")
    if len(comparison.rows) > 1 and all(row.p is None for row in comparison.rows):
        note(f"qkv: no p-values: {_why_no_p(recipe, comparison, tested=test is not None or folds is not None)}")
    written: list[Path] = []
    if comparison.rows:
        from qkv.tasks.compare.files import save  # matplotlib

        written = save(comparison, out)
    return Outcome(comparison, written, interrupted)


def _why_no_p(recipe: AnyRecipe, comparison: Comparison, *, tested: bool) -> str:
    if comparison.judge:
        trainings, unit = quantity(comparison.missing, "training"), comparison.unit
        why = f"{trainings} missing" if comparison.missing else "the others have stopped"
        return f"no other combination was tested with a {unit} of the best one; {why}"
    if tested:
        return f"what {recipe.settings.name} is tested on has no answers of which each is right or wrong"
    files = on_command_line(TEST + files_to_test(recipe.settings)[-1], "FILE")
    return f"nothing was tested on: give {files}"


def _train(recipe: AnyRecipe, trainings: Sequence[Training], device: str) -> bool:
    """Train what is missing; return whether Ctrl-C ended it."""
    for number, training in enumerate(trainings, 1):
        label = f"training {number:,} of {len(trainings):,}: {training.cell.name}, {training.unit} {training.seed}"
        try:
            with use_verbosity(Verbosity("verbose" if verbose() else "quiet")):
                result = train_cell(recipe, training, device)
        except QkvError:
            note(f"qkv: {label} failed")
            raise
        if result == "interrupted":
            return True
        if isinstance(result, Result):
            figure = show_figures(result.figures[:1]) if result.figures else f"stopped: {result.stopped}"
            note(f"qkv: {label}: {figure} ({quantity(round(result.seconds), 'second')} of processor time)")
        elif result == "busy":
            note(f"qkv: {label}: another process trains it")
    return False

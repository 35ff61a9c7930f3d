"""The checkpoints of one run: which exist, which is the newest, which is the best, which can be removed.

RUN/step-00001000/    a checkpoint, see `qkv.checkpoint.folder`
RUN/best              names the best one
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.disk import REPLACED, FolderReader, expect_inside, remove_folder, replace_file, typed
from qkv.checkpoint.folder import current_folder, is_checkpoint, save, verify
from qkv.checkpoint.json_values import decode_mapping, encode
from qkv.checkpoint.manifest import Manifest
from qkv.errors import CheckpointError, setting
from qkv.system import is_in_use, standard_error

BEST = "best"
_BEST_LIMIT = 4096
_STEP = re.compile(r"step-([0-9]{8,18})")


def to_stderr(text: str) -> None:
    """Write one line to standard error.

    Args:
        text: the line.
    """
    print(text, file=standard_error(), flush=True)


def step_folder(run: Path, step: int) -> Path:
    """Name the checkpoint of a step.

    Args:
        run: the run folder.
        step: number of completed updates.

    Returns:
        Its folder, existing or not.

    Example:
        >>> step_folder(Path("run"), 1000).name
        'step-00001000'
    """
    return run / f"step-{step:08d}"


def steps(run: Path) -> list[int]:
    """List the steps that have a checkpoint in a run folder, complete or not.

    Args:
        run: the run folder.

    Returns:
        The steps, ascending.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    with typed(run, "a readable run folder"):
        entries = [entry.name for entry in os.scandir(run) if entry.is_dir(follow_symlinks=False)]
    # An interrupted replacement left the old checkpoint under this hidden name: it still counts.
    names = {name.removeprefix(".").removesuffix(REPLACED) if name.endswith(REPLACED) else name for name in entries}
    return sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))


def present(run: Path) -> list[Path]:
    """List the checkpoints of a run, complete or not.

    Args:
        run: the run folder.

    Returns:
        Their folders, oldest first.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    return [current_folder(step_folder(run, step)) for step in steps(run)]


def save_step(run: Path, step: int, contents: Contents, *, keep: int = 3, best: bool = False) -> Manifest:
    """Save the checkpoint of a step, point `best` to it if it is the best, then remove old ones.

    Args:
        run: an existing run folder.
        step: number of completed updates.
        contents: what to write; replaces an existing checkpoint of the same step.
        keep: number of newest checkpoints to retain, at least 1, in addition to the best.
        best: whether this is the best one so far.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: it cannot be written; existing checkpoints are retained.
    """
    folder = step_folder(run, step)
    manifest = save(folder, contents, replace=True)
    if best:
        mark_best(run, step)
    for old in surplus(steps(run), keep, best_step(run)):
        try:
            remove_folder(current_folder(step_folder(run, old)))
        except CheckpointError as error:
            if not is_in_use(error.__cause__):  # else the next save removes it
                raise
    return manifest


def surplus(present: Iterable[int], keep: int, best: int | None) -> list[int]:
    """Choose the checkpoints to remove.

    Args:
        present: the existing steps.
        keep: number of newest steps to retain; at least one is always retained.
        best: another step to retain, if any.

    Returns:
        The steps to remove, ascending.

    Example:
        >>> surplus([100, 200, 300, 400], keep=2, best=100)
        [200]
    """
    ordered = sorted(set(present))
    return [step for step in ordered[: -max(1, keep)] if step != best]


def latest_complete(run: Path, say: Callable[[str], None] = to_stderr) -> Path | None:
    """Find the newest checkpoint that is complete and unaltered.

    Args:
        run: the run folder.
        say: called with a message for each damaged checkpoint that is skipped; prints to standard error by default.

    Returns:
        Its folder, or None if no checkpoint was ever saved.

    Raises:
        CheckpointError: there are checkpoints, but none is complete; the message gives the newest one's fault.
    """
    faults: list[CheckpointError] = []
    for step in reversed(steps(run)):
        folder = current_folder(step_folder(run, step))
        try:
            verify(folder)
        except CheckpointError as error:
            faults.append(error)
            say(f"Skipping a damaged checkpoint: {error}")
        else:
            return folder
    if faults:
        raise faults[0]
    return None


def mark_best(run: Path, step: int) -> None:
    """Point `best` to the checkpoint of a step, atomically.

    Args:
        run: the run folder.
        step: a step with a checkpoint.

    Raises:
        CheckpointError: the pointer cannot be written.
    """
    replace_file(run / BEST, encode({"checkpoint": step_folder(run, step).name}, BEST))


def best_step(run: Path) -> int | None:
    """Read which step `best` points to.

    Args:
        run: the run folder.

    Returns:
        The step, or None if there is no pointer.

    Raises:
        CheckpointError: the pointer is damaged.
    """
    path = run / BEST
    if not os.path.lexists(path):
        return None
    with FolderReader(run) as reader:
        value = decode_mapping(reader.read(BEST, _BEST_LIMIT), str(path)).get("checkpoint")
    match = _STEP.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        hint = "Remove this file and resume training, or give the folder of one checkpoint, as in RUN/step-00001000."
        raise CheckpointError(str(path), 'the name of a checkpoint, as "step-00001000"', repr(value), hint)
    return int(match[1])


def best(run: Path) -> Path:
    """Find the best checkpoint of a run.

    Args:
        run: the run folder.

    Returns:
        Its folder.

    Raises:
        CheckpointError: none was marked yet, the pointer is damaged, or the checkpoint is missing.
    """
    step = best_step(run)
    if step is None:
        hint = "Train until the first validation, or give the folder of one checkpoint, as in RUN/step-00001000."
        raise CheckpointError(str(run / BEST), "the name of the best checkpoint", "no such file", hint)
    folder = current_folder(step_folder(run, step))
    if not is_checkpoint(folder):
        hint = "Copy the whole run folder again, or give the folder of another checkpoint."
        raise CheckpointError(str(run / BEST), f"a checkpoint {folder.name}", "no such folder", hint)
    expect_inside(folder)
    return folder


def locate(path: Path, say: Callable[[str], None] = to_stderr) -> Path:
    """Find the checkpoint for a path given by the user.

    Args:
        path: a checkpoint, a run folder (its best checkpoint, else its newest complete one), or the file `RUN/best`.
        say: called with a message for each damaged checkpoint that is skipped, and if the run has no best one yet;
            prints to standard error by default.

    Returns:
        The folder of one checkpoint.

    Raises:
        CheckpointError: there is no checkpoint.

    Example:
        >>> locate(Path("/dev/null/model"))
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/model: expected a checkpoint or a run folder; got no such folder. ...
    """
    if is_checkpoint(path):
        return current_folder(path)
    if path.name == BEST and os.path.isfile(path):
        path = path.parent
    if not os.path.isdir(path):
        got = "a file" if os.path.exists(path) else "no such folder"
        hint = "Give the run folder (" + setting("out") + ") of a training, or one checkpoint in it."
        raise CheckpointError(str(path), "a checkpoint or a run folder", got, hint)
    if os.path.lexists(path / BEST):
        return best(path)
    newest = latest_complete(path, say)
    if newest is None:
        hint = "Give the run folder (" + setting("out") + ") of a training, or one checkpoint in it."
        raise CheckpointError(str(path), "a checkpoint or a run folder", "a folder without checkpoints", hint)
    say(f"qkv: {path}: its training was not validated yet: this is its newest checkpoint, {newest.name}.")
    return newest

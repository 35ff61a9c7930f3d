"""Logging the figures of a run to TensorBoard."""

import errno
import os
from pathlib import Path
from typing import final

from qkv.checkpoint.disk import make_folder, typed
from qkv.errors import ConfigError, expect_enough_memory
from qkv.system import expect_held
from qkv.training.events import Event, Logged, Validated

NAME = "tensorboard"


@final
class Board:
    """Writes scalars that TensorBoard shows.

    Args:
        run: the run folder; logs go into its `tensorboard/`.
        step: number of completed updates; later entries of a killed process are hidden.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, run: Path, step: int) -> None:
        """Open the writer."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            expect_enough_memory(error)
            hint = "Install it: in the checkout, pip install '.[log]'."
            raise ConfigError("tensorboard", "the package tensorboard", str(error), hint) from error
        self._folder = run / NAME
        make_folder(self._folder)
        with typed(self._folder, "a writable folder"):
            if self._folder.is_symlink():
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def __call__(self, event: Event) -> None:
        """Write the scalars of a log or validation event."""
        with typed(self._folder, "a writable folder"):
            expect_held(self._folder)
            self._write(event)

    def _write(self, event: Event) -> None:
        match event:
            case Logged():
                for name in ("loss", "learning_rate", "gradient_norm", "tokens_per_second"):
                    self._writer.add_scalar(f"train/{name}", getattr(event, name), event.step)
            case Validated(step, figures, _):
                for figure in figures:
                    self._writer.add_scalar(f"validation/{figure.name}", figure.value, step)
            case _:
                return
        self._writer.flush()

    def close(self) -> None:
        """Close the writer."""
        with typed(self._folder, "a writable folder"):
            expect_held(self._folder)
            self._writer.close()

"""A requested training: of a command, of `qkv.train`, or of a child process of a training with several."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

from qkv.errors import QkvError
from qkv.settings import merge
from qkv.tasks.catalog import recipe_of
from qkv.tasks.corpora.prepared import with_corpus
from qkv.tasks.launch import TrainingCall, expect_count, meet
from qkv.tasks.origin import Origin, expect_tokenizer, open_origin, origin_tables
from qkv.tasks.settings import TaskSettings
from qkv.training.events import Outcome

_FAILED = 2


class TrainingRecipe(Protocol):
    """A training task: builds settings from nested dicts, and trains a run from them; see `qkv.tasks.recipe`."""

    @property
    def settings(self) -> TaskSettings:
        """Its tables of settings."""

    def load_settings(self, tables: Mapping[str, Mapping[str, Any]]) -> Any:
        """Check settings and fill in defaults."""

    def show_settings(self, settings: Any) -> dict[str, Any]:
        """Return all settings as nested dicts."""

    def train(self, settings: Any, out: Path | None, device: str, *, tensorboard: bool, origin: Any) -> Outcome:
        """Train, or resume."""


@final
@dataclass(frozen=True, eq=False)
class RequestedTraining:
    """A training whose settings are checked.

    Args:
        recipe: its task.
        call: what was asked for, with the settings of the run that it starts from and of its prepared corpus.
        settings: all settings.
        origin: the run that it starts from.
        processes: how many are asked for; None for those of `torchrun`, or one.
    """

    recipe: TrainingRecipe
    call: TrainingCall
    settings: Any
    origin: Origin | None
    processes: int | None = None

    @classmethod
    def of(cls, recipe: TrainingRecipe, call: TrainingCall, processes: int | None = None) -> "RequestedTraining":
        """Check what is asked for: it overrides the run that the training starts from.

        Raises:
            QkvError: a setting is wrong, or contradicts that run or the prepared corpus.
        """
        task = recipe.settings
        processes = expect_count(processes, task)
        origin = open_origin(call.start, task.name, call.tokenizer_from)
        tables = with_corpus(merge(origin_tables(origin, task), call.tables), task)
        expect_tokenizer(origin, tables, task)
        call = replace(call, tables=tables)
        if processes is not None and processes > 1:
            call = replace(call, tables=call.plain())  # an iterator can be read only once
        return cls(recipe, call, recipe.load_settings(call.tables), origin, processes)

    def train(self, device: str = "cpu", *, tensorboard: bool = False) -> Outcome:
        """Train in this process, or resume.

        Raises:
            QkvError: any bad input.
        """
        return self.recipe.train(self.settings, self.call.out, device, tensorboard=tensorboard, origin=self.origin)


def main() -> None:
    """Run a child process: join the training that the first process requests."""
    joined = False
    try:
        with meet(None, "cpu") as rendezvous, rendezvous.joined() as processes:
            joined = True
            call = TrainingCall.from_json(processes.copy_text())
            RequestedTraining.of(recipe_of(call.task), call).train()
    except QkvError as error:
        if not joined:  # once joined, the process that leads reports the errors of all
            print(f"qkv: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(_FAILED)

"""A process of a training that another one started: it is told what to train, and trains it as that one orders."""

import sys

from qkv.errors import QkvError
from qkv.tasks.catalog import recipe_of
from qkv.tasks.origin import open_origin
from qkv.tasks.processes import TrainingCall, meet

_FAILED = 2


def main() -> None:
    """Train what the process that leads is asked to train."""
    reached = False
    try:
        with meet(None, "cpu") as meeting, meeting.joined() as processes:
            reached = True
            follow(TrainingCall.from_json(processes.copy_text()))
    except QkvError as error:
        if not reached:  # from then on the process that leads reports the errors of all
            print(f"qkv: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(_FAILED)


def follow(call: TrainingCall) -> None:
    """Train in the process of a training that was joined.

    Args:
        call: the training.

    Raises:
        QkvError: any bad input.
    """
    recipe = recipe_of(call.task)
    origin = open_origin(call.start, call.task, call.tokenizer_from)
    recipe.train(recipe.load_settings(call.tables), call.out, origin=origin)

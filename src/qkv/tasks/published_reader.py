"""The reader of a published folder, with its weights: what fills masks and what labels."""

from typing import TypeVar

from torch import nn

from qkv.errors import ConfigError
from qkv.hub.families.load import PublishedConfig
from qkv.settings import build
from qkv.tasks.runs import rebuild
from qkv.tasks.trained import Trained

Reads = TypeVar("Reads", bound=nn.Module)


def rebuild_reader(trained: Trained, kind: type[Reads]) -> Reads:
    """Create the reader of a published model.

    Args:
        trained: as `qkv.tasks.published.open_published` reads it.
        kind: the class that it must have.

    Raises:
        CheckpointError: it has another class, or the weights do not fit.
    """
    table = trained.contents.config.get("model")
    sizes = {name: item for name, item in (table if isinstance(table, dict) else {}).items() if name != "kind"}
    return rebuild(lambda: _reader(build(PublishedConfig, sizes, "model"), kind), trained)


def _reader(config: PublishedConfig, kind: type[Reads]) -> Reads:
    model = config.build()
    if not isinstance(model, kind):
        got = type(model).__name__
        raise ConfigError("model.settings", "a reader", got, "Use its own task.")
    return model

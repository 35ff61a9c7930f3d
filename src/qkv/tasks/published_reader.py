"""The reader of a published folder, with its weights: what fills masks and what labels."""

from qkv.errors import ConfigError
from qkv.hub.families.load import PublishedConfig
from qkv.models.stack_encoder import StackReader
from qkv.tasks.runs import rebuild
from qkv.tasks.settings import build
from qkv.tasks.trained import Trained


def rebuild_reader(trained: Trained) -> StackReader:
    """Create the reader of a published model.

    Args:
        trained: as `qkv.tasks.published.open_published` reads it.

    Raises:
        CheckpointError: it is not a reader, or the weights do not fit.
    """
    table = trained.contents.config.get("model")
    sizes = {name: item for name, item in (table if isinstance(table, dict) else {}).items() if name != "kind"}
    return rebuild(lambda: _reader(build(PublishedConfig, sizes, "model")), trained)


def _reader(config: PublishedConfig) -> StackReader:
    model = config.build()
    if not isinstance(model, StackReader):
        got = type(model).__name__
        raise ConfigError("model.settings", "a reader", got, "Use its own task.")
    return model

"""The settings of a model: every size that can be chosen is one, and its help gives the default that is used."""

from collections.abc import Mapping
from typing import Any

import pytest

from qkv.errors import ConfigError
from qkv.settings import hints_of, options_of, shown_default
from qkv.tasks.catalog import TASKS, recipe_of

KINDS = [
    *(("translate", {"model": kind}) for kind in ("transformer", "gru", "lstm")),
    ("translate", {"model": "gru", "alignment": "monotonic-0"}),
    ("translate", {"model": "gru", "alignment": "monotonic-1"}),
    *(("generate", {"model": kind}) for kind in ("transformer", "gru")),
    *((task, {"model": kind}) for task in ("classify", "tag") for kind in ("gru", "transformer", "none")),
    *(("point", {"model": kind}) for kind in ("transformer", "lstm")),
    ("regress", {}),
]


def config_of(task: str, table: Mapping[str, Any]) -> Any:
    settings = recipe_of(task).load_settings({"model": dict(table)})
    return settings.model


@pytest.mark.parametrize(("task", "table"), KINDS)
def test_defaults_in_the_help_are_those_that_are_used(task: str, table: dict[str, Any]) -> None:
    settings, config = TASKS[task].tables["model"], config_of(task, table)
    seen = 0
    for name in options_of(settings):
        shown = shown_default(settings, name)
        if isinstance(shown, Mapping):
            shown = shown.get(table["model"], shown["others"])
        if name in table or not hasattr(config, name):
            continue
        used = getattr(config, name)
        phrase = isinstance(shown, str) and shown not in str(hints_of(settings)[name])
        if used is not None and not phrase and name not in ("alpha", "power"):  # of entmax and one kernel alone
            assert shown == used, name
            seen += 1
    assert seen >= 2


def test_a_width_that_changes_nothing_is_refused() -> None:
    """As where a training starts from another run, whose sizes are settings of the new one."""
    sizes = {"hidden": 32, "embedding": 16, "attention": 16}
    narrow: dict[str, Any] = {"model": "gru", "width": 32}
    assert config_of("translate", {**narrow, **sizes}) == config_of("translate", narrow)
    assert config_of("translate", {**narrow, "embedding": 20}) != config_of("translate", narrow)
    with pytest.raises(ConfigError) as caught:
        config_of("translate", {"model": "gru", "width": 64, **sizes})
    assert caught.value.argument == "width"
    assert caught.value.got == "hidden 32, embedding 16, attention 16"

"""What a task reads by its settings."""

from typing import Any

from qkv.tasks.catalog import recipe_of


def read(task: str, **tables: dict[str, Any]) -> Any:
    """The data of a task, read by tables of settings."""
    recipe = recipe_of(task)
    return recipe.read(recipe.load_settings(tables), None)

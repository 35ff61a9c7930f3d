"""Lazy imports: of public names, so that `import qkv` is fast, and of what belongs to one task."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Build a package's `__getattr__` from a table of names.

    Args:
        package: the package's `__name__`.
        homes: maps each public name to the module that defines it; `"numpy": "numpy"` means the module itself.

    Returns:
        The function to bind to `__getattr__`.

    Example:
        >>> lazy("qkv", {"nearest": "qkv.errors"})("nearest").__name__
        'nearest'
    """

    def getattr_(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home)
        attribute = module if home == f"{package}.{name}" and not hasattr(module, name) else getattr(module, name)
        # Cache the name in the package, so that the next lookup does not call this function.
        setattr(sys.modules[package], name, attribute)
        return attribute

    return getattr_


def imported_later(module: str, name: str) -> Callable[[], Any]:
    """Return a function that imports a module and returns what has a name in it.

    Example:
        >>> imported_later("qkv.errors", "nearest")().__name__
        'nearest'
    """
    return lambda: getattr(import_module(module), name)

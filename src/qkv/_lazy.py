"""Lazy imports: of public names, so that `import qkv` is fast, and of what belongs to one task."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, table: Mapping[str, str], *defined_here: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Build what a package needs so that its public names are imported when they are first used.

    Type checkers read the names from imports as themselves, under `TYPE_CHECKING`.

    Args:
        package: the package's `__name__`.
        table: the public names by the module that defines them; `"numpy": "numpy"` means the module itself. No other
            name may be that of its module: importing that would make the name the module.
        defined_here: further public names, which the package itself defines.

    Returns:
        The values of `__getattr__`, `__dir__` and `__all__`.

    Example:
        >>> getattr_, _, names = lazy("qkv", {"qkv.errors": "nearest setting"})
        >>> getattr_("nearest").__name__, names
        ('nearest', ['nearest', 'setting'])
    """
    homes = {name: module for module, names in table.items() for name in names.split()}
    public = sorted((*homes, *defined_here))

    def getattr_(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home)
        attribute = module if home == f"{package}.{name}" else getattr(module, name)
        # Cache the name in the package, so that the next lookup does not call this function.
        setattr(sys.modules[package], name, attribute)
        return attribute

    return getattr_, lambda: public, public


def imported_later(module: str, name: str) -> Callable[[], Any]:
    """Return a function that imports a module and returns what has a name in it.

    Example:
        >>> imported_later("qkv.errors", "nearest")().__name__
        'nearest'
    """
    return lambda: getattr(import_module(module), name)

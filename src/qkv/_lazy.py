"""Public names that are imported when first used, so that `import qkv` stays light."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Build a package's `__getattr__` from a table of names.

    Args:
        package: the package's `__name__`.
        homes: for each public name the module that defines it; `"numpy": "numpy"` stands for the module itself.

    Returns:
        The function to bind to `__getattr__`.

    Example:
        >>> lazy("qkv", {"error_message": "qkv.errors"})("error_message").__name__
        'error_message'
    """

    def getattr_(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home)
        found = module if home == f"{package}.{name}" and not hasattr(module, name) else getattr(module, name)
        # The next use finds it at once: this function is asked only for names that the package lacks.
        setattr(sys.modules[package], name, found)
        return found

    return getattr_

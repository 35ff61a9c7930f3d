"""Public names that are imported when first used, so that `import qkv` stays light."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], list[str]]:
    """Build a package's `__getattr__` and `__all__` from a table of names.

    Args:
        package: the package's `__name__`.
        homes: for each public name the module that defines it; a name that equals its module's last part is the
            module itself.

    Returns:
        The function to bind to `__getattr__`, and the sorted names to bind to `__all__`.

    Example:
        >>> getattr_, names = lazy_names("qkv", {"complaint": "qkv.errors"})
        >>> getattr_("complaint").__name__, names
        ('complaint', ['complaint'])
    """

    def getattr_(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home)
        return module if home == f"{package}.{name}" and not hasattr(module, name) else getattr(module, name)

    return getattr_, sorted(homes)

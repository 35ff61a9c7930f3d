"""Find the private names of other libraries that the source touches; `tests/test_private_names.py` lists them."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit", "_thread"}
"""What is public in spite of its name: Python's documentation promises the methods of `namedtuple`, and the rest."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the files that touch each private name which they do not define themselves.

    A name is a dotted path from a module, up to its last private part, or `.name` of any object.
    """
    definitions = {file: _defined(tree) for file, tree in trees.items()}
    everywhere = set[str]().union(*definitions.values())
    files: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        defined, modules = definitions[file], _imported_modules(tree)
        for name, from_self in _touched(tree, modules):
            last = name.rpartition(".")[2]
            if last in DOCUMENTED or (name.startswith(".") and last in (everywhere if from_self else defined)):
                continue
            files[name].add(file)
    return dict(files)


def _defined(tree: ast.Module) -> set[str]:
    """Return the attributes that classes of a file define, in their bodies or on `self`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(body=body):
                for inner in body:
                    match inner:
                        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                            names.add(name)
                        case ast.AnnAssign(target=ast.Name(id=name)):
                            names.add(name)
                        case ast.Assign(targets=targets):
                            names.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def _imported_modules(tree: ast.Module) -> dict[str, str]:
    """Return the path of each imported name of another library."""
    paths: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    root = alias.name.split(".")[0]
                    paths[alias.asname or root] = alias.name if alias.asname else root
            case ast.ImportFrom(module=str(module), names=names):
                paths.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in names})
    return {name: path for name, path in paths.items() if path.split(".")[0] != "qkv"}


def _touched(tree: ast.Module, modules: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield each private name, and whether it is one of `self`."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from _path(alias.name)
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] != "qkv":
                for alias in names:
                    yield from _path(f"{module}.{alias.name}")
            case ast.Attribute() if id(node) not in inner:
                yield from _chain(node, modules)
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                if is_private(name):
                    yield f".{name}", False


def _chain(node: ast.Attribute, modules: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    names: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        names.insert(0, value.attr)
        value = value.value
    if isinstance(value, ast.Name) and value.id in modules:
        yield from _path(".".join([modules[value.id], *names]))
        return
    from_self = isinstance(value, ast.Name) and value.id in ("self", "cls")
    for place, name in enumerate(names):
        if is_private(name):
            yield f".{name}", from_self and place == 0


def _path(path: str) -> Iterator[tuple[str, bool]]:
    parts = path.split(".")
    last = max((place for place, part in enumerate(parts) if is_private(part)), default=None)
    if last is not None and parts[0] != "qkv":
        yield ".".join(parts[: last + 1]), False

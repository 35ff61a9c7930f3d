"""Names of the standard library that a system lacks, from the stubs by which mypy checks types (typeshed)."""

import ast
import sys
from functools import cache
from pathlib import Path

import mypy

_STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
_VERSION = sys.version_info[:2]


@cache
def absent(system: str) -> dict[str, set[str]]:
    """Return, by module, the names that Linux has and a system lacks; "*" for a module that it lacks.

    Args:
        system: as in `sys.platform`: "win32" or "darwin".

    Returns:
        Names of modules whose stubs ask for the system.
    """
    missing = {}
    for module in sys.stdlib_module_names:
        paths = (_STUBS / f"{module}.pyi", _STUBS / module / "__init__.pyi")
        text = next((path.read_text(encoding="utf-8") for path in paths if path.exists()), "")
        if "sys.platform" not in text:
            continue
        tree = ast.parse(text)
        here, there = (_public(_defined(tree.body, each)) for each in ("linux", system))
        if here - there:
            # The stub of a module that a system lacks defines nothing there, but for what it imports.
            missing[module] = here - there if there - _imported(tree) else {"*"}
    return missing


def _public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def _defined(statements: list[ast.stmt], system: str) -> set[str]:
    """Return the names that statements define on a system."""
    names: set[str] = set()
    for statement in statements:
        match statement:
            case ast.If():
                names |= _defined(statement.body if _holds(statement.test, system) else statement.orelse, system)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(statement.name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {each.id for each in targets if isinstance(each, ast.Name)}
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {each.asname for each in aliases if each.asname}
    return names


def _imported(tree: ast.Module) -> set[str]:
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {each.asname or each.name for node in imports for each in node.names}


def _holds(test: ast.expr, system: str) -> bool:
    """Evaluate a condition on `sys.platform` and `sys.version_info`, all that stubs ask."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_holds(each, system) for each in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_holds(each, system) for each in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _holds(operand, system)
        case ast.Compare(left=ast.Attribute(attr="platform"), ops=[compare], comparators=[ast.Constant(value=name)]):
            return (system == name) is isinstance(compare, ast.Eq)
        case ast.Compare(left=ast.Attribute(attr="version_info"), ops=[compare], comparators=[version]):
            bound = tuple(ast.literal_eval(version))
            return (bound <= _VERSION) is isinstance(compare, ast.GtE)
        case ast.Name(id="TYPE_CHECKING"):
            return True
    raise ValueError(ast.unparse(test))

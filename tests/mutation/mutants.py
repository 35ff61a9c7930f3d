"""Random small changes of the source: one operator, comparison, constant, condition or return value."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "scores": (
        "tests/scores",
        "tests/test_biases.py",
        "tests/contract/test_exact.py",
        "tests/test_errors_and_messages.py",
    ),
    "normalizers": ("tests/normalizers", "tests/contract/test_exact.py", "tests/test_errors_and_messages.py"),
    "masks": (
        "tests/masks",
        "tests/contract/test_exact.py",
        "tests/contract/test_in_place.py",
        "tests/test_errors_and_messages.py",
    ),
    "algorithms": ("tests/algorithms", "tests/contract/test_exact.py", "tests/contract/test_derivatives.py"),
    "decode": ("tests/decode",),
    "checkpoint": ("tests/checkpoint",),
}
"""The tests of each package of the source; its doctests run too."""
_COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """One change.

    Args:
        path: the file, relative to the project's root.
        line: the changed line.
        what: the change.
        first: the first line of the enclosing function.
        last: its last line.
        text: the whole changed file.
        package: the package whose tests judge it.
    """

    path: str
    line: int
    what: str
    first: int
    last: int
    text: str
    package: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.what}"


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    """Every change of one node: a description, and a function that applies it to a copy of the node."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            new = _COMPARED[type(operator)]
            yield f"{type(operator).__name__} -> {new.__name__}", lambda n: setattr(n, "ops", [new()])
        case ast.BinOp(op=operator) if type(operator) in _COMPUTED:
            new = _COMPUTED[type(operator)]
            yield f"{type(operator).__name__} -> {new.__name__}", lambda n: setattr(n, "op", new())
        case ast.BoolOp(op=operator):
            new = ast.Or if isinstance(operator, ast.And) else ast.And
            yield f"{type(operator).__name__} -> {new.__name__}", lambda n: setattr(n, "op", new())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield f"drop {type(node.op).__name__}", lambda n: setattr(n, "op", ast.UAdd())
        case ast.Constant(value=bool(value)):
            yield f"{value} -> {not value}", lambda n: setattr(n, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield f"{value} -> {value + 1}", lambda n: setattr(n, "value", value + 1)
        case ast.If() | ast.IfExp():
            yield "condition -> False", lambda n: setattr(n, "test", ast.Constant(False))
        case ast.Return(value=ast.expr()):
            yield "return None", lambda n: setattr(n, "value", ast.Constant(None))


def places(path: Path) -> list[tuple[Path, int, int]]:
    """Every change inside functions of a file: the file, the index of the node, the index of its change."""
    nodes = _nodes(ast.parse(path.read_text(encoding="utf-8")))
    return [(path, place, turn) for place, (_, node) in enumerate(nodes) for turn, _ in enumerate(changes(node))]


def make(path: Path, place: int, turn: int, package: str) -> Mutant:
    """One mutant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    function, node = _nodes(tree)[place]
    what, deed = list(changes(node))[turn]
    line, first, last = getattr(node, "lineno", 0), function.body[0].lineno, function.end_lineno or 0
    deed(node)
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Mutant(str(path.relative_to(ROOT)), line, what, first, last, text, package)


def _nodes(tree: ast.AST) -> list[tuple[ast.FunctionDef, ast.AST]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [(function, node) for function in functions for part in function.body for node in ast.walk(part)]


def draw(count: int, seed: int) -> list[Mutant]:
    """A random sample, with equal numbers from each package, as far as possible."""
    random, chosen = Random(seed), []
    for number, package in enumerate(PACKAGES):
        home = ROOT / "src" / "qkv" / package
        files = [home] if home.is_file() else sorted(home.rglob("*.py"))
        every = [found for path in files for found in places(path)]
        share = count // len(PACKAGES) + (number < count % len(PACKAGES))
        chosen += [make(*found, package) for found in random.sample(every, min(share, len(every)))]
    random.shuffle(chosen)
    return chosen

"""Spoils the source a little, again and again, and asks the tests of its room whether they notice.

    python tests/mutation.py --count 150 --seed 0 --out mutants.json

Each mutant changes one comparison, operator, constant, condition or returned value of one function. The room's fast
tests run in a copy of the project; a mutant is killed where they fail, or take longer than their limit. Survivors are
printed with their line: each is either the same program in another form, or a test that is missing.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
ROOMS = {
    "scores": ("tests/scores", "tests/contract/test_exact.py", "tests/test_errors_and_messages.py"),
    "normalizers": ("tests/normalizers", "tests/contract/test_exact.py", "tests/test_errors_and_messages.py"),
    "masks": ("tests/masks", "tests/test_errors_and_messages.py"),
    "states.py": ("tests/test_states.py",),
    "backends": ("tests/backends", "tests/contract/test_exact.py", "tests/contract/test_derivatives.py"),
    "decode": ("tests/decode",),
    "checkpoint": ("tests/checkpoint",),
}
"""For each room of the source the tests that are its own; its doctests run too."""
LIMIT = 600.0
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
        path: of the file, from the project's root.
        line: where.
        what: the change.
        text: the whole file with it.
        room: whose tests judge it.
    """

    path: str
    line: int
    what: str
    text: str
    room: str


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    """Every change of one node: in words, and as a deed on a copy of it."""
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
    """Every change of a file, inside functions: the file, the place of the node, the number of its change."""
    nodes = _nodes(ast.parse(path.read_text(encoding="utf-8")))
    return [(path, place, turn) for place, node in enumerate(nodes) for turn, _ in enumerate(changes(node))]


def make(path: Path, place: int, turn: int, room: str) -> Mutant:
    """One mutant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = _nodes(tree)[place]
    what, deed = list(changes(node))[turn]
    line = getattr(node, "lineno", 0)
    deed(node)
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Mutant(str(path.relative_to(ROOT)), line, what, text, room)


def _nodes(tree: ast.AST) -> list[ast.AST]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [node for function in functions for statement in function.body for node in ast.walk(statement)]


def draw(count: int, seed: int) -> list[Mutant]:
    """A random sample, as many of each room as near as may be."""
    random, chosen = Random(seed), []
    for number, room in enumerate(ROOMS):
        home = ROOT / "src" / "qkv" / room
        files = [home] if home.is_file() else sorted(home.rglob("*.py"))
        every = [found for path in files for found in places(path)]
        share = count // len(ROOMS) + (number < count % len(ROOMS))
        chosen += [make(*found, room) for found in random.sample(every, min(share, len(every)))]
    random.shuffle(chosen)
    return chosen


def judge(mutant: Mutant, copy: Path) -> str:
    """What becomes of a mutant: "killed", "killed by time", or "survived"."""
    path = copy / mutant.path
    sound = path.read_bytes()
    path.write_text(mutant.text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, mutant.path, *ROOMS[mutant.room]],
            cwd=copy,
            env=environment,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "killed by time"
    finally:
        path.write_bytes(sound)
    return "killed" if done.returncode else "survived"


def main(count: int, seed: int, only: str, out: Path | None) -> None:
    results = []
    with TemporaryDirectory() as base:
        copy = Path(base, "copy")
        for part in ("src", "tests", "pyproject.toml", "README.md"):
            source = ROOT / part
            (shutil.copytree if source.is_dir() else _copy)(source, copy / part)
        chosen = [mutant for mutant in draw(count, seed) if only in mutant.room]
        for room in sorted({mutant.room for mutant in chosen}):
            _expect_sound(next(mutant for mutant in chosen if mutant.room == room), copy)
        for mutant in chosen:
            fate = judge(mutant, copy)
            results.append({**asdict(mutant), "fate": fate})
            del results[-1]["text"]
            sys.stdout.write(f"{fate:14} {mutant.path}:{mutant.line} {mutant.what}\n")
            sys.stdout.flush()
            if out is not None:
                out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    killed = sum(result["fate"] != "survived" for result in results)
    sys.stdout.write(f"{killed} of {len(results)} killed\n")


def _expect_sound(mutant: Mutant, copy: Path) -> None:
    """The tests must pass where nothing was changed, or every mutant would count as killed."""
    text = (copy / mutant.path).read_text(encoding="utf-8")
    if judge(replace(mutant, text=text), copy) != "survived":
        raise SystemExit(f"the tests of {mutant.room} fail, or take longer than {LIMIT:.0f} s, without any change")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=154)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="rooms with this in their name")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    main(given.count, given.seed, given.only, given.out)

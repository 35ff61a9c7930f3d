"""Which files decide a kernel's machine code: found in the text, complete, and as this process first read them."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.compiled.every_kernel import modules

from qkv.compiled.sources import PACKAGE, SKIPPED, Sources, meaning
from qkv.compiled.target import BUILD_VARIABLE, TARGETS

KERNELS = [name for name in modules() if name.endswith("_kernel")]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of a few empty files."""
    root = tmp_path / "some"
    for name in ("__init__", "one", "two", "part/__init__", "part/three", "part/deep/__init__", "part/deep/four"):
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return root


def imported(package: Path, text: str, file: str = "part/user.py") -> list[str]:
    """The files behind one with a text, without itself."""
    path = package / file
    path.write_text(textwrap.dedent(text))
    return [each.relative_to(package).as_posix() for each in Sources(package).files([path]) if each != path]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import some.one", ["one.py"]),
        ("import numpy, some.one as other, some.part.three", ["one.py", "part/three.py"]),
        ("import some.part", ["part/__init__.py"]),
        ("import some", ["__init__.py"]),
        ("from some import one, two", ["one.py", "two.py"]),
        ("from some.one import number", ["one.py"]),
        ("from some.part import three, number", ["part/__init__.py", "part/three.py"]),
        ("from some.part import deep", ["part/deep/__init__.py"]),
        ("from some.part import *", ["part/__init__.py"]),
        ("from some.part.deep import (  # of (two) lines\n    four,\n)", ["part/deep/four.py"]),
        ("from some.part.deep \\\n    import four", ["part/deep/four.py"]),
        ("x = 1; import some.one", ["one.py"]),
        ("if x: import some.one", ["one.py"]),
        ("try:\n    import some.one\nexcept ImportError:\n    import some.two", ["one.py", "two.py"]),
        ("def f():\n    from some import two", ["two.py"]),
        ("import some.one\ndef f():\n    from some import two", ["one.py", "two.py"]),
        ("class A:\n    import some.one", ["one.py"]),
        ('TEXT = """\ndef f():\n"""\nimport some.one', ["one.py"]),
        ('"""Text.\n\ndef f(): a line like a definition.\n"""\nX = 1', []),
        ('"""Say import some.one in words."""\n# import some.two', []),
        ("from . import three", ["part/three.py"]),
        ("from .three import number", ["part/three.py"]),
        ("from .. import one", ["one.py"]),
        ("from ..two import number", ["two.py"]),
        ("from .deep.four import number", ["part/deep/four.py"]),
        ("import numpy\nfrom somewhere import one\nimport someone.else_", []),
    ],
)
def test_every_way_to_import(package: Path, text: str, expected: list[str]) -> None:
    assert imported(package, text) == expected


def test_imports_are_followed_through_other_files_and_in_circles(package: Path) -> None:
    (package / "one.py").write_text("from some.part import three")
    (package / "part" / "three.py").write_text("import some.one, some.part.deep.four")
    assert imported(package, "import some.one") == ["one.py", "part/deep/four.py", "part/three.py"]


def test_a_file_outside_the_package_may_import_from_it(package: Path, tmp_path: Path) -> None:
    (outside := tmp_path / "mine.py").write_text("from some.one import number\nfrom . import other")
    assert Sources(package).files([outside]) == [outside, package / "one.py"]


def test_a_file_without_source_raises(package: Path) -> None:
    (package / "part" / "three.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"three\.py"):
        imported(package, "from some.part.three import number")
    with pytest.raises(FileNotFoundError, match=r"gone\.py"):
        Sources(package).digest([package / "gone.py"])


def test_the_digest_is_of_names_and_meanings_and_not_of_the_place(package: Path, tmp_path: Path) -> None:
    imported(package, "import some.one")
    digest = Sources(package).digest([package / "part" / "user.py"])
    moved = (tmp_path / "elsewhere" / "some").resolve()
    moved.parent.mkdir()
    package.rename(moved)
    user = moved / "part" / "user.py"
    assert Sources(moved).digest([user]) == digest
    (moved / "two.py").write_text("x = 1")
    assert Sources(moved).digest([user]) == digest
    (moved / "one.py").write_text("x = 1")
    changed = Sources(moved).digest([user])
    assert changed != digest
    user.write_text("import some.two")  # of the same bytes as the other file, under another name
    assert Sources(moved).digest([user]) not in (changed, digest)


def test_files_are_as_they_were_first_read(package: Path) -> None:
    """A process goes on with the code that it imported, whatever is edited later."""
    imported(package, "import some.one")
    user, running = package / "part" / "user.py", Sources(package)
    digest = running.digest([user])
    (package / "one.py").write_text("import some.two")
    assert running.digest([user]) == digest
    assert Sources(package).digest([user]) != digest


def test_what_is_skipped_is_neither_listed_nor_followed(package: Path) -> None:
    (package / "one.py").write_text("from some import two")
    (package / "part" / "user.py").write_text("from some import one")
    (path,) = Sources(package, skipped=["one.py"]).files([package / "part" / "user.py"])
    assert path.name == "user.py"


LOADED = textwrap.dedent(
    """
    import importlib, json, sys

    def loaded(name):
        for each in [each for each in sys.modules if each.split(".")[0] == "qkv"]:
            del sys.modules[each]
        importlib.import_module(name)
        importlib.import_module("qkv.compiled.compiler")
        return {each for each in sys.modules if each.split(".")[0] == "qkv"}

    print(json.dumps({name: sorted(loaded(name)) for name in sys.argv[1:]}))
    """
)


def test_a_kernels_files_are_those_that_its_import_loads() -> None:
    """Python says which modules a kernel's module and the compiler bring in; packages on the way hold no kernels."""
    settings = {**os.environ, BUILD_VARIABLE: TARGETS[0].name}
    command = [sys.executable, "-c", LOADED, *KERNELS]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    besides = {PACKAGE / name for name in (*SKIPPED, *BELOW, "_lazy.py", "_version.py")}
    for name, modules_ in json.loads(done.stdout).items():
        own = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
        files = set(Sources().files([own, PACKAGE / "compiled" / "compiler.py"]))
        places = [PACKAGE.parent.joinpath(*each.split(".")) for each in modules_]
        assert {place.with_suffix(".py") for place in places if not place.is_dir()} - besides == files, name


BELOW = ("files.py", "forks.py", "introspect/display.py", "strict_json.py", "system.py")
"""What the skipped files import."""


def test_kernels_are_made_of_few_files() -> None:
    """What an edit of the engine, a score or a public name would compile again, without need."""
    for name in KERNELS:
        own = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
        for path in Sources().files([own]):
            place = path.relative_to(PACKAGE)
            assert place.parts[0] in ("compiled", "linalg") or place.stem.endswith("_kernel"), place


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ('"""Text."""\nX = 1', "X = 1  # one", True),
        ('def f():\n    """Do."""\n    return 1', "def f():\n\n    return (\n        1\n    )", True),
        ('class A:\n    """Be."""\n    x = 1\n    """An x."""', "class A:\n    x = 1", True),
        ('X = "text"', 'X = "another"', False),
        ("X = 1", "X = 1.0", False),
        ("def f(x):\n    return x", "def g(x):\n    return x", False),
    ],
)
def test_what_a_file_means_is_its_code(before: str, after: str, same: bool) -> None:
    assert (meaning(before.encode()) == meaning(after.encode())) is same

"""Which tests run which lines of a package, from one run under coverage."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest
from tests.mutation.mutants import Mutant

COMPILED = "_kernel"
"""Part of the names of files that Numba compiles: coverage cannot see their lines run, so any test might run them."""

# pytest warns that it cannot rewrite modules imported before the fork.
OPTIONS = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


@dataclass(frozen=True)
class Reach:
    """What a package's tests ran.

    Args:
        seconds: processor time of each test.
        tests: for each file and line of the source, the tests that ran it.
    """

    seconds: dict[str, float]
    tests: dict[str, dict[int, list[str]]]

    def of(self, mutant: Mutant, own_tests: tuple[str, ...]) -> dict[str, float]:
        """The tests of a package that run a mutant's function, fastest first, with their seconds."""
        mine = {name: taken for name, taken in self.seconds.items() if name.startswith((*own_tests, mutant.path))}
        if COMPILED not in mutant.path:
            lines = self.tests.get(mutant.path, {})
            reached = {name for line in range(mutant.first, mutant.last + 1) for name in lines.get(line, [])}
            mine = {name: taken for name, taken in mine.items() if name in reached}
        near = sorted(mine.items(), key=lambda test: (COMPILED in mutant.path and COMPILED not in test[0], test[1]))
        return dict(near)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps([self.seconds, self.tests]), encoding="utf-8")

    @staticmethod
    def read(path: Path) -> "Reach":
        seconds, tests = json.loads(path.read_text(encoding="utf-8"))
        return Reach(seconds, {file: {int(line): names for line, names in of.items()} for file, of in tests.items()})


class Observer:
    """A pytest plugin: tells coverage which test is running, and times it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(source=[str(root / "src" / "qkv")], data_file=None, config_file=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.coverage.switch_context(item.nodeid)
        begun = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - begun
        return result

    def reach(self) -> Reach:
        data = self.coverage.get_data()
        files = {
            str(Path(file).relative_to(self.root)): data.contexts_by_lineno(file) for file in data.measured_files()
        }
        return Reach(self.seconds, files)


def observe(root: Path, tests: list[str], out: Path) -> int:
    """Run tests under coverage, write what they reach, and return pytest's exit code."""
    observer = Observer(root)
    observer.coverage.start()
    code = pytest.main([*OPTIONS, *tests], plugins=[observer])
    observer.coverage.stop()
    observer.reach().write(out)
    return int(code)

"""The readers of `targets.py` in the form that OSS-Fuzz and Atheris run: each file `fuzz_*.py` beside this one
defines `TestOneInput(data)` and calls `run`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from qkv.errors import QkvError

Reader = Callable[[Path], object]


def reading(name: str, reader: Reader) -> Callable[[bytes], None]:
    """Return a fuzz target: a file of that name is read, and any error but a typed one is a finding."""
    folder = TemporaryDirectory()

    def test_one_input(data: bytes) -> None:
        path = Path(folder.name, name)
        path.write_bytes(data)
        try:
            reader(path)
        except QkvError:
            return

    return test_one_input


def run(target: Callable[[bytes], None]) -> None:
    """Fuzz with Atheris if it is installed; without it, read the files given as arguments once each."""
    try:
        import atheris
    except ImportError:
        for name in sys.argv[1:]:
            target(Path(name).read_bytes())
        return
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()

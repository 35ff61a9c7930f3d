"""The environment that the command line sets for the libraries below PyTorch, in fresh processes: they read it once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pairs import fast

from qkv.cli.main import SPINS, set_defaults
from qkv.compiled import openmp

NAMES = (
    "GOMP_SPINCOUNT",
    "OMP_WAIT_POLICY",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "DNNL_PRIMITIVE_CACHE_CAPACITY",
    "LRU_CACHE_CAPACITY",
)
AT_IMPORT = """
import os, sys; NAMES = sys.argv[2:]; del sys.argv[2:]
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(*(os.environ.get(name) for name in NAMES))
            raise SystemExit(0)
sys.meta_path.insert(0, Watch())
from qkv.cli.main import main
main()
"""


def _explain(*python: str, **chosen: str) -> subprocess.CompletedProcess[str]:
    """Run `qkv explain` with these variables and no others of `NAMES`."""
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, *python]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=kept | chosen)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "2000 None 64 None 64"),
        ({"GOMP_SPINCOUNT": "7", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}, "7 None 8 None 64"),
        ({"OMP_WAIT_POLICY": "active", "LRU_CACHE_CAPACITY": "5"}, "None active 64 None 5"),
        ({"DNNL_PRIMITIVE_CACHE_CAPACITY": "9"}, "2000 None None 9 64"),
    ],
)
def test_a_command_sets_what_the_user_has_not_set_before_it_imports_pytorch(
    chosen: dict[str, str], expected: str
) -> None:
    done = _explain("-c", AT_IMPORT, "explain", *NAMES, **chosen)
    assert done.stdout.split() == expected.split(), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows writes names in UTF-16")
@pytest.mark.parametrize("out", fast(["out", "größe"], "größe"))
def test_a_name_that_the_locale_cannot_write_is_one_message(out: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[data]\ndata = "größe.csv"\nx = ["x"]\ny = "y"\n', encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = ["-m", "qkv", "train", "regress", "--config", "run.toml", "--out", out]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, check=False, env=os.environ | ascii_only
    )
    assert done.returncode == 2
    assert re.fullmatch(rb"qkv: file name: expected [^\n]*gr\\xf6\\xdfe.csv[^\n]*LC_ALL=C.UTF-8.\n", done.stderr)


@pytest.mark.skipif(not openmp.available(), reason="PyTorch does not use GNU's OpenMP here")
def test_the_library_has_read_it() -> None:
    """GNU's OpenMP shows its settings when it is loaded."""
    done = _explain("-m", "qkv", "explain", OMP_DISPLAY_ENV="verbose")
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr) == [SPINS], done.stderr


def test_nothing_else_is_set() -> None:
    environment = {"PATH": "/bin"}
    set_defaults(environment)
    assert set(environment) == {"PATH", "GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}

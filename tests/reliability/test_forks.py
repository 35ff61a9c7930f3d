"""A forked child that would wait for the threads of its parent for ever says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv import forks

PROGRAM = """
import os, sys, torch, qkv
from qkv.errors import ForkError
from tests.train.parts import run_training
from pathlib import Path
x = None
if sys.argv[1] == "used":
    x = torch.randn(2, 4, 256, 64)
    qkv.attention(x, x, x)
    torch.randn(1 << 20).relu()
child = os.fork()
if child == 0:
    if sys.argv[2] == "one":
        torch.set_num_threads(1)
    x = torch.randn(2, 4, 256, 64) if x is None else x
    said = []
    for deed in (lambda: qkv.attention(x, x, x), lambda: run_training(Path(sys.argv[3]))):
        try:
            deed()
        except ForkError as error:
            said.append(str(error).split(";")[0])
    print(said, flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
TOLD = "['attention: expected one thread in a forked child', 'training: expected one thread in a forked child']\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    ("parent", "threads", "expected"), [("used", "two", TOLD), ("used", "one", "[]\n"), ("new", "two", "[]\n")]
)
def test_a_child_computes_or_says_why_not(parent: str, threads: str, expected: str, tmp_path: Path) -> None:
    path = os.pathsep.join((str(Path(qkv.__file__).parents[1]), str(Path(__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, parent, threads, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


@pytest.mark.parametrize(("threads", "lost"), [(1, False), (2, True)])
def test_where_threads_cannot_be_counted_a_fork_with_several_is_taken_to_lose_them(
    threads: int, lost: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As outside of Linux."""
    monkeypatch.setattr(forks, "_TASKS", tmp_path / "none")
    monkeypatch.setattr(forks, "_running", not lost)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    forks._before()
    assert forks._running == lost


def test_a_removed_working_folder_is_a_typed_error(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from qkv.checkpoint.folder import standing
from qkv.errors import ConfigError
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])
try:
    standing(Path("run"))
except ConfigError as error:
    print(error)
"""
    path = str(Path(qkv.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "gone")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("run: expected a path in a folder that exists; got a removed working folder. ")


def test_a_command_in_a_removed_working_folder_says_so(tmp_path: Path) -> None:
    """MKL would end the process without a reason that helps."""
    program = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); sys.argv[1:] = ['translate', 'run']; "
    folder = tmp_path / "gone"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program + "from qkv.cli.main import main; main()", str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(qkv.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("qkv: working folder: expected one that exists; got a removed one. ")


def test_digits_of_other_scripts_name_no_checkpoint(tmp_path: Path) -> None:
    from qkv.checkpoint.rotation import steps

    (tmp_path / "step-٠٠٠٠١٠٠٠").mkdir()
    (tmp_path / "step-00000002").mkdir()
    assert steps(tmp_path) == [2]

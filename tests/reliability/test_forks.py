"""A forked child computes as its parent does; if it would wait for its parent's threads forever, it says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.programs_in_forks import in_fork

import qkv
from qkv import forks
from qkv.checkpoint.folder import current_folder
from qkv.errors import ConfigError

PROGRAM = """
import os, signal, sys, threading, torch
torch.set_num_threads(2)
torch.randn(1 << 20).relu()  # PyTorch's threads run before qkv is imported
import qkv
from pathlib import Path
from qkv import forks
from qkv.errors import ForkError
from tests.training.parts import run_training

torch.manual_seed(0)
x, points = torch.randn(2, 4, 256, 64), torch.randn(1, 2, 512, 8)
layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, dropout=0.0)
attention = qkv.nn.MultiHeadAttention(64, 4)


def gradient(tensor, **mechanism):
    query = tensor.clone().requires_grad_()
    qkv.attention(query, tensor, tensor, **mechanism).sum().backward()
    return query.grad


def trained(name):
    run_training(Path(sys.argv[2], name))
    return torch.zeros(())


DEEDS = {
    "products": lambda name: (x @ x.mT).relu(),
    "attention": lambda name: qkv.attention(x, x, x),
    "weights": lambda name: qkv.attention_with_weights(x, x, x)[1],
    "gradients": lambda name: gradient(x, mask=qkv.masks.causal()),
    "kernels": lambda name: gradient(points, score=qkv.scores.Gaussian(2.0), backend="rowwise"),
    "maps": lambda name: qkv.attention_map(x, x).received(),
    "layers": lambda name: layer(x[0]),
    "modules": lambda name: attention(x[0]),
    "functions": lambda name: qkv.flex_attention(x, x, x, score_mod=lambda s, b, h, q, k: s.tanh() + k),
    "training": trained,
}


def compute(name):
    done = {}
    for deed, call in DEEDS.items():
        try:
            done[deed] = call(name)
        except ForkError as error:
            done[deed] = str(error).split(";")[0]
    return done


if sys.argv[1] == "cannot":
    forks._end_threads = lambda torch_file: False
expected = compute("parent")


def child(name, then=None):
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        done = compute(name)
        for deed, found in done.items():
            if isinstance(found, str):
                print(deed, found, flush=True)
            elif not torch.equal(found, expected[deed]):
                print(deed, "differs", flush=True)
        os._exit(child("grandchild") if name == "child" and sys.argv[1] == "can" else 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if sys.argv[1] == "cannot":
    DEEDS = {name: DEEDS[name] for name in ("attention", "training")}
    sys.exit(child("child"))
thread = threading.Thread(target=lambda: print(child("of a thread"), flush=True))
thread.start()
thread.join()
print(child("child"), flush=True)
compute("parent again")
"""


def fork(case: str, folder: Path) -> str:
    """Return what the children of a program say, in a process of its own: one that hangs must not block this one."""
    path = os.pathsep.join((str(Path(qkv.__file__).parents[1]), str(Path(__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, case, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.mark.kernels
@needs_fork
def test_children_of_threads_and_of_children_compute_what_their_parent_does(tmp_path: Path) -> None:
    assert fork("can", tmp_path) == "0\n0\n"


@pytest.mark.slow
@pytest.mark.kernels
@needs_fork
def test_a_child_whose_parents_threads_could_not_be_ended_says_so(tmp_path: Path) -> None:
    expected = "expected one thread in a forked child"
    assert fork("cannot", tmp_path) == f"attention attention: {expected}\ntraining training: {expected}\n"


@pytest.mark.parametrize("file", ["/nowhere/torch/__init__.py", ""])
def test_threads_of_an_unknown_library_cannot_be_ended(file: str) -> None:
    assert not forks._end_threads(file)


def test_threads_are_lost_where_ending_them_finds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(torch_file: str) -> bool:
        raise MemoryError

    monkeypatch.setattr(forks, "_end_threads", refuse)
    monkeypatch.setattr(forks, "_losing", False)
    monkeypatch.setattr(forks, "lost", False)
    with pytest.raises(MemoryError):  # Python reports it and forks
        forks._before()
    forks._in_child()
    assert forks.lost


@needs_fork
def test_a_removed_working_folder_is_a_typed_error(tmp_path: Path) -> None:
    def ask() -> None:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(ConfigError) as raised:
            current_folder(Path("run"))
        sys.stdout.write(str(raised.value))

    said = in_fork(ask).stdout
    assert said.startswith("run: expected a path in a folder that exists; got a removed working folder. ")


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

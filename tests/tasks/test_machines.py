"""A training of two machines, each of which is a network namespace of this one: the same bits, and a cut connection."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.tasks.test_together import PAIRS

import qkv
from qkv.checkpoint.folder import verify
from qkv.checkpoint.rotation import latest_complete

HANG = 300
"""Seconds after which a process counts as one that hangs."""
LATER, STEPS = 4, 40
PROGRAM = """
from datetime import timedelta
from qkv.cli.main import main
from qkv.training import processes
processes.PATIENCE = timedelta(seconds=20)  # half an hour in place of it takes too long for a test
main()
"""
SETTINGS = f"""
[training]
accumulate = 4
batch_tokens = 48
steps = {STEPS}
validate_every = {LATER}
log_every = 2
[model]
model = "gru"
width = 8
"""


class Machines:
    """Two network namespaces that a pair of virtual cables connects."""

    def __init__(self) -> None:
        self.names = [f"qkv-{os.getpid()}-{number}" for number in range(2)]

    def connect(self) -> None:
        cables = [f"qkv{os.getpid() % 100_000}{side}" for side in "ab"]
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        first, second = self.names
        ip("link", "add", cables[0], "netns", first, "type", "veth", "peer", "name", cables[1], "netns", second)
        for number, (name, cable) in enumerate(zip(self.names, cables, strict=True), start=1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
        self.cut = lambda: ip("-n", second, "link", "set", cables[1], "down")

    def disconnect(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def start(self, number: int, command: Sequence[str], folder: Path) -> "subprocess.Popen[bytes]":
        with (folder / f"said-{number}").open("wb") as said:
            inside = ["ip", "netns", "exec", self.names[number], *command]
            return subprocess.Popen(inside, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env=environment())


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(qkv.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def machines() -> Iterator[Machines]:
    if shutil.which("ip") is None:
        pytest.skip("needs `ip` of iproute2")
    two = Machines()
    try:
        two.connect()
        yield two
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs network namespaces: {error.stderr.decode().strip()}")
    finally:
        two.disconnect()


def training(out: str) -> list[str]:
    return ["program.py", "train", "translate", "--data", "pairs.tsv", "--config", "four.toml", "--out", out]


def on_two(machines: Machines, folder: Path, out: str) -> "list[subprocess.Popen[bytes]]":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    at = ["--master-addr", "10.77.0.1", "--master-port", "29500"]
    nodes = [[*torchrun, *at, "--node-rank", str(number), *training(out)] for number in range(2)]
    return [machines.start(number, command, folder) for number, command in enumerate(nodes)]


@pytest.mark.slow
def test_two_machines_give_the_bits_of_one_and_end_together(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    (tmp_path / "four.toml").write_text(SETTINGS)
    (tmp_path / "program.py").write_text(PROGRAM)
    alone = subprocess.run([sys.executable, *training("one")], cwd=tmp_path, env=environment(), check=False)
    assert alone.returncode == 0
    expected = verify(tmp_path / "one" / f"step-{STEPS:08}").digest

    assert [process.wait(HANG) for process in on_two(machines, tmp_path, "two")] == [0, 0]
    assert verify(tmp_path / "two" / f"step-{STEPS:08}").digest == expected
    assert (tmp_path / "said-0").read_text().count(f"step {STEPS}:") == 1
    assert "step " not in (tmp_path / "said-1").read_text()

    processes = on_two(machines, tmp_path, "cut")
    until = time.monotonic() + HANG
    while not (tmp_path / "cut" / f"step-{LATER:08}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    machines.cut()
    assert processes[0].wait(HANG) == 1  # torchrun's
    processes[1].terminate()  # it asks the first machine what has happened, until the system gives up
    processes[1].wait(HANG)
    said = [(tmp_path / f"said-{number}").read_text().count("qkv: processes: expected") for number in range(2)]
    assert said == [1, 0]
    newest = latest_complete(tmp_path / "cut", lambda _: None)
    assert newest is not None
    resumed = subprocess.run([sys.executable, *training("cut")], cwd=tmp_path, env=environment(), check=False)
    assert resumed.returncode == 0
    assert verify(tmp_path / "cut" / f"step-{STEPS:08}").digest == expected

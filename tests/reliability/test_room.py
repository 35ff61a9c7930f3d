"""Where the memory does not hold what was asked, a message says what, and what would take less."""

import os
import subprocess
import sys

import pytest
import torch
import typer

from qkv.cli.failure import BAD_INPUT, guarded
from qkv.errors import RoomError, exhausted
from qkv.nn.attention import Attention

LIMITED = """
import resource, sys, torch
from pathlib import Path
from qkv.errors import QkvError
from qkv.nn.attention import Attention
torch.set_num_threads(1)
x = torch.randn(1, 8, 8192, 8)
call = Attention(backend=sys.argv[1])
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    print(tuple(call(x, x, x).shape))
except QkvError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_a_real_limit_is_met_by_auto_and_said_of_the_full_matrix(backend: str) -> None:
    """2 GiB of weights, and half a GiB of room."""
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, backend]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    if backend == "auto":
        assert done.stdout == "(1, 8, 8192, 8)\n"
        return
    assert done.stdout.startswith("RoomError memory: expected room for one attention; got DefaultCPUAllocator: ")
    assert "(backend 'reference', " in done.stdout
    assert 'backend="auto" takes less: explain chooses sdpa, with ' in done.stdout
    assert "[training] tokens in --config" in done.stdout


def test_a_size_that_no_machine_has_is_a_typed_error() -> None:
    """A score of the caller's own that asks for an exabyte."""
    from qkv.scores.free import Learned

    def huge(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return torch.empty(1 << 58) @ key

    x = torch.randn(1, 3, 4)
    with pytest.raises(
        RoomError, match=r"expected room for one attention; got .*allocate.*smaller batch \(\[training\] tokens"
    ):
        Attention(Learned(huge), backend="reference")(x, x, x)


def test_another_fault_passes_unchanged() -> None:
    from qkv.scores.free import Learned

    def faulty(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mine")

    x = torch.randn(1, 3, 4)
    with pytest.raises(RuntimeError, match="mine"):
        Attention(Learned(faulty), backend="reference")(x, x, x)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[x] DefaultCPUAllocator: can't allocate memory: 8 bytes")]
)
def test_a_command_without_memory_ends_with_one_message(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    @guarded
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith("qkv: memory: expected room for this; got ")
    assert "[training] tokens in --config" in said
    assert said.count("\n") == 1


def test_only_an_exhausted_memory_counts_as_one() -> None:
    assert exhausted(RuntimeError("shapes differ")) is None
    assert exhausted(torch.OutOfMemoryError("CUDA out of memory.\nmore")) == "CUDA out of memory."

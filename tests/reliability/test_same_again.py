"""The same command, seed and threads give the same bits, interrupted or not, for each model family."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.reliability.families import FAMILIES, STEPS, TRAINING
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from qkv.checkpoint.folder import verify
from qkv.checkpoint.rotation import present

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
ONE_FAST = [pytest.param(name, marks=[] if name in ("tagger", "pointer") else pytest.mark.slow) for name in FAMILIES]


def digests(run: Path) -> dict[str, str]:
    """A digest per checkpoint, over all of its bytes."""
    return {folder.name: verify(folder).digest for folder in present(run)}


@contextmanager
def signal_after(updates: int, number: signal.Signals) -> Iterator[None]:
    """Send this process a signal after the n-th update from now."""
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done == updates:
            signal.raise_signal(number)

    handle = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ONE_FAST)
def test_every_checkpoint_has_the_same_bits_again(name: str, data: Path, tmp_path: Path) -> None:
    for out in ("first", "second"):
        FAMILIES[name].train(data, tmp_path / out)
    found = digests(tmp_path / "first")
    assert len(found) >= 4
    assert found == digests(tmp_path / "second")


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("tagger", [3, 10]),
        ("pointer", [4, 11]),
        *(pytest.param(name, list(range(1, 21)), marks=pytest.mark.slow) for name in FAMILIES),
    ],
)
def test_a_run_stopped_at_any_of_these_updates_ends_with_the_same_bits(
    name: str, points: list[int], data: Path, tmp_path: Path
) -> None:
    """One run, stopped at each point and resumed: the last checkpoint includes weights, moments, schedule, generators
    and the place in the data.
    """
    whole = FAMILIES[name].train(data, tmp_path / "whole")
    before = 0
    for place, point in enumerate(points):
        number = (signal.SIGTERM, signal.SIGINT)[place % 2]
        with signal_after(point - before, number):
            outcome = FAMILIES[name].train(data, tmp_path / "parts")
        assert (outcome.step, outcome.exit_code) == (point, CODES[number])
        before = point
    outcome = FAMILIES[name].train(data, tmp_path / "parts")
    assert (outcome.step, outcome.digest) == (STEPS, whole.digest)


@contextmanager
def at_each_module(do: Callable[..., None]) -> Iterator[None]:
    """Call `do` before any module computes."""
    handle = register_module_forward_pre_hook(do)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def at_each_gradient(do: Callable[..., None]) -> Iterator[None]:
    """Call `do` whenever the gradient of any module's weight has been computed."""
    hooked: dict[int, RemovableHandle] = {}

    def hook(module: nn.Module, _: object) -> None:
        # Include the parameters of submodules: a recurrent layer can be used without being called.
        for weight in module.parameters():
            if id(weight) not in hooked:
                hooked[id(weight)] = weight.register_hook(do)

    with at_each_module(hook):
        try:
            yield
        finally:
            for handle in hooked.values():
                handle.remove()


WAYS = {"forward": at_each_module, "backward": at_each_gradient}


@contextmanager
def signal_within(way: str, place: int, number: signal.Signals) -> Iterator[None]:
    """Send this process a signal when the n-th module from now is about to compute, or at the n-th gradient."""
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done == place:
            signal.raise_signal(number)

    with WAYS[way](count):
        yield


@pytest.mark.parametrize(
    ("name", "points"),
    [("tagger", [23, 80]), *(pytest.param(name, [3, 23, 80, 37], marks=pytest.mark.slow) for name in FAMILIES)],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_stopped_within_an_update_or_a_validation_ends_with_the_same_bits(
    name: str, way: str, points: list[int], data: Path, tmp_path: Path
) -> None:
    """The interrupted update or validation leaves no trace: no gradient, no random draw, no skipped batch.

    Every part runs under a hook of all modules, which has each called instead of read: other sums, other bits.
    """
    with at_each_module(lambda *_: None):
        whole = FAMILIES[name].train(data, tmp_path / "whole")
        for place, point in enumerate(points):
            number = (signal.SIGTERM, signal.SIGINT)[place % 2]
            with signal_within(way, point, number):
                outcome = FAMILIES[name].train(data, tmp_path / "parts")
            assert (outcome.reason, outcome.exit_code) == ("interrupted", CODES[number])
        outcome = FAMILIES[name].train(data, tmp_path / "parts")
    assert (outcome.step, outcome.digest) == (STEPS, whole.digest)


EARLY = """
import sys
from pathlib import Path
from qkv.training import loop
from tests.reliability.families import FAMILIES

class Told:
    def __enter__(self):
        sys.exit(0 if "torch._dynamo" in sys.modules else 1)

    def __exit__(self, *_):
        pass

loop.Interrupts = Told
FAMILIES["tagger"].train(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_nothing_that_takes_seconds_is_imported_once_signals_wait(data: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", EARLY, data, tmp_path / "out"], check=False, timeout=180)
    assert done.returncode == 0


def interrupt(command: list[str], out: Path, number: signal.Signals) -> tuple[int, str, float]:
    """Start the real command, send a signal after its first log entry; return exit code, messages and delay."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    log, deadline = out / "metrics.jsonl", time.monotonic() + 300
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline and training.poll() is None:
        time.sleep(0.02)
    sent = time.monotonic()
    training.send_signal(number)
    _, messages = training.communicate(timeout=300)
    return training.returncode, messages.decode(), time.monotonic() - sent


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_real_command_saves_and_ends_with_the_code_of_its_signal(
    name: str, number: signal.Signals, data: Path, tmp_path: Path
) -> None:
    """Resumed by another process, it has the bits of a run that never stopped."""
    out = tmp_path / "run"
    command = FAMILIES[name].command(data, out, steps=100_000, schedule="constant")
    code, messages, _ = interrupt(command, out, number)
    assert code == CODES[number], messages
    assert "everything is saved in" in messages
    assert "Traceback" not in messages
    # A warm-up is at most half of the updates, and must be the same in both.
    steps = max(int(present(out)[-1].name.removeprefix("step-")) + 3, 2 * TRAINING["warmup"])
    resumed = FAMILIES[name].train(data, out, steps=steps, schedule="constant")
    whole = FAMILIES[name].train(data, tmp_path / "whole", steps=steps, schedule="constant")
    assert (resumed.step, resumed.digest) == (steps, whole.digest)

"""A short, fixed part of `make fuzz`: every kind of file, corrupted a few times, in this process."""

import os
import signal
from pathlib import Path

import pytest
from tests.fuzz.campaign import attempt_once, seed_of, try_target
from tests.fuzz.opened import Watch
from tests.fuzz.targets import Target, targets

from qkv.errors import DataError

TARGETS = {target.name: target for target in targets()}
TRAINED = ("forged trainer", "run folder")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in TRAINED else []) for name in TARGETS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_spoilt_file_gives_a_typed_error_or_a_sound_value(name: str, tmp_path: Path) -> None:
    target, inside, outside = TARGETS[name], tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    attempt = target.make(inside)
    outside.mkdir(exist_ok=True)
    watch = Watch(outside)
    found = [attempt_once(attempt, seed_of(target, 1, number)) for number in range(6 * target.share)]
    assert [fault for _, fault in found if fault] == []
    assert watch.seen() == []
    assert any(refused for refused, _ in found)


def test_a_campaign_reports_what_must_not_be(tmp_path: Path) -> None:
    """The harness itself: an untyped error, a crash, an opened file, a typed refusal."""

    def make(folder: Path):
        def attempt(random):
            raise (DataError("fine"), KeyError("untyped"))[random.randrange(2)]

        return attempt

    tally = try_target(Target("harness", make), 40, 0)
    assert tally.tried == 40
    assert 0 < tally.refused < 40
    assert len(tally.faults) == 40 - tally.refused
    assert all("KeyError: 'untyped'" in fault for fault in tally.faults)


def test_a_campaign_survives_a_crash_and_a_read_outside() -> None:
    def make(folder: Path):
        (folder.parent / "outside").mkdir()
        (folder.parent / "outside" / "secret").write_text("x")

        def attempt(random):
            deed = random.randrange(30)
            if deed == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if deed == 1:
                (folder / ".." / "outside" / "secret").read_text()
            if deed == 2:
                bytearray(400 << 20)

        return attempt

    faults = try_target(Target("crash", make), 80, 0).faults
    assert any("process ended by signal 9" in fault for fault in faults)
    assert any("opened secret outside" in fault for fault in faults)
    assert any("MemoryError" in fault for fault in faults)

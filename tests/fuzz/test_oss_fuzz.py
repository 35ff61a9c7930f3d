"""Every fuzz target in OSS-Fuzz's form reads what is sound, and takes any bytes without an untyped error."""

import importlib
from pathlib import Path
from random import Random

import pytest

TARGETS = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))
SEEDS = (
    b"",
    b"{}",
    b"\x1f\x8b\x08",
    b'{"step": 1, "kind": "train"}\n',
    b"\x02\0\0\0\0\0\0\0{}",
    b"[a]\nb = 1\n",
    b"\xff" * 40,
)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_read_or_refused(name: str) -> None:
    target = importlib.import_module(f"tests.fuzz.{name}").TestOneInput
    random = Random(name)
    for seed in SEEDS:
        target(seed)
        for _ in range(20):
            data = bytearray(seed + random.randbytes(random.randrange(9)))
            if data:
                data[random.randrange(len(data))] = random.randrange(256)
            target(bytes(data))


def test_every_reader_has_a_target() -> None:
    assert len(TARGETS) >= 8

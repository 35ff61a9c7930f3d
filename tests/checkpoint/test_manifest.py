from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.checkpoint.json_values import encode
from qkv.checkpoint.manifest import LIMITS, Manifest, StoredFile, describe, parse
from qkv.errors import CheckpointError

FILES = {"model.safetensors": b"abc", "config.json": b"{}"}
GOOD = describe(FILES, {"model.safetensors": {"b": "a"}, "trainer.safetensors": {}})
DIGEST = sha256(b"").hexdigest()


def signed(body: dict) -> bytes:
    """What an attacker can always write: arbitrary content with a matching digest."""
    return encode(body | {"digest": sha256(encode(body, "x")).hexdigest()}, "x")


def body(**changes: object) -> dict:
    files = {name: {"bytes": 1, "sha256": DIGEST} for name in FILES}
    return {"format": "qkv checkpoint", "version": 1, "files": files, "tied": {}} | changes


def test_what_is_written_is_read_back():
    assert parse(GOOD.to_bytes(), "M") == GOOD
    assert GOOD.tied == {"model.safetensors": {"b": "a"}}
    assert GOOD.files["config.json"] == StoredFile(2, sha256(b"{}").hexdigest())


def test_a_manifest_with_a_fitting_digest_is_read():
    assert parse(signed(body()), "M") == Manifest({name: StoredFile(1, DIGEST) for name in FILES})


def test_every_flipped_bit_is_caught():
    good = GOOD.to_bytes()
    for place in range(len(good) * 8):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(CheckpointError, match=r"^M"):
            parse(bytes(bad), "M")


@given(st.integers(0, len(GOOD.to_bytes()) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_every_change_is_caught(place, new, cut):
    good = GOOD.to_bytes()
    bad = good[:place] + new + good[place + cut :]
    if bad != good:
        with pytest.raises(CheckpointError, match=r"^M"):
            parse(bad, "M")


def test_added_white_space_is_caught():
    with pytest.raises(CheckpointError, match=r"altered content"):
        parse(GOOD.to_bytes() + b" ", "M")


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/x", "..", "", "evil.py", "MANIFEST.json"])
def test_no_file_but_the_known_ones_can_be_named(name):
    files = body()["files"] | {name: {"bytes": 1, "sha256": DIGEST}}
    with pytest.raises(CheckpointError, match=r"expected only the files model.safetensors"):
        parse(signed(body(files=files)), "M")


@pytest.mark.parametrize(
    "entry",
    [
        {"bytes": -1, "sha256": DIGEST},
        {"bytes": True, "sha256": DIGEST},
        {"bytes": 1.0, "sha256": DIGEST},
        {"bytes": LIMITS["config.json"] + 1, "sha256": DIGEST},
        {"bytes": 1, "sha256": DIGEST.upper()},
        {"bytes": 1, "sha256": DIGEST[:-1]},
        {"bytes": 1, "sha256": DIGEST + "\n"},
        {"bytes": 1, "sha256": DIGEST, "path": "/"},
        {"sha256": DIGEST},
        [],
        None,
    ],
)
def test_sizes_and_hashes_are_checked(entry):
    files = body()["files"] | {"config.json": entry}
    with pytest.raises(CheckpointError, match=r"config.json with its sha256 and at most"):
        parse(signed(body(files=files)), "M")


@pytest.mark.parametrize("missing", list(FILES))
def test_a_required_file_cannot_be_left_out(missing):
    files = {name: entry for name, entry in body()["files"].items() if name != missing}
    with pytest.raises(CheckpointError, match=f"expected a file {missing}"):
        parse(signed(body(files=files)), "M")


def test_the_trainers_two_files_come_together():
    files = body()["files"] | {"trainer.json": {"bytes": 1, "sha256": DIGEST}}
    with pytest.raises(CheckpointError, match=r"one of the two"):
        parse(signed(body(files=files)), "M")


@pytest.mark.parametrize(
    "tied", [None, [], {"model.safetensors": 1}, {"config.json": {}}, {"model.safetensors": {"a": 1}}]
)
def test_ties_are_names_of_tensors(tied):
    with pytest.raises(CheckpointError, match='"tied"'):
        parse(signed(body(tied=tied)), "M")


def test_another_format_or_a_newer_version_is_said_plainly():
    with pytest.raises(CheckpointError, match='"format": "qkv checkpoint"; got \'other\''):
        parse(signed(body(format="other")), "M")
    with pytest.raises(CheckpointError, match=r"Use the version of qkv that saved it"):
        parse(signed(body(version=2)), "M")
    with pytest.raises(CheckpointError, match='"files" as an object'):
        parse(signed(body(files=[])), "M")

"""Sizes are checked before contents: what a small or sparse file claims takes neither memory nor time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.fuzz.models import families

import qkv
from qkv.checkpoint import manifest as manifests
from qkv.checkpoint.contents import Contents, TrainerState, pack_contents
from qkv.checkpoint.folder import load, load_weights_later, save
from qkv.checkpoint.tensors import pack, read_header
from qkv.data import corpus
from qkv.data.corpus import read_lines
from qkv.data.segments import SPECIALS
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError

HUGE = 3 << 30


def sparse(folder: Path, name: str) -> None:
    """A checkpoint whose tensor of that name has gibibytes that take no space on disk, and a sum that is wrong."""
    files, manifest = pack_contents(families()["gru"])
    whole = files[manifests.MODEL]
    length = int.from_bytes(whole[:8], "little")
    table = json.loads(whole[8 : 8 + length])
    last = max(entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__")
    table[name] = {"dtype": "F32", "shape": [HUGE // 4], "data_offsets": [last, last + HUGE]}
    text = json.dumps(table).encode()
    folder.mkdir()
    for each, data in files.items():
        (folder / each).write_bytes(data)
    with (folder / manifests.MODEL).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        stream.truncate(8 + len(text) + last + HUGE)
    size = (folder / manifests.MODEL).stat().st_size
    entries = dict(manifest.files) | {manifests.MODEL: manifests.StoredFile(size, "0" * 64)}
    (folder / manifests.NAME).write_bytes(manifests.Manifest(entries, manifest.tied).to_bytes())


def test_weights_that_do_not_fit_are_refused_before_they_are_read(tmp_path: Path) -> None:
    sparse(tmp_path / "run", "more")
    # Its sum is wrong too: whoever had read it would say that it was altered.
    with pytest.raises(
        CheckpointError, match=r"got one of sizes \(805306368,\) named more where config\.json has none"
    ):
        qkv.load(tmp_path / "run")


def test_weights_are_verified_when_they_are_read(tmp_path: Path) -> None:
    save(tmp_path / "run", Contents({"a": torch.ones(3)}, {"task": "x"}))
    later = load_weights_later(tmp_path / "run").model
    path = tmp_path / "run" / manifests.MODEL
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert list(later) == ["a"]
    with pytest.raises(CheckpointError, match="an altered file"):
        later["a"]


LIMITED = """
import resource, sys, torch
from pathlib import Path
from qkv.checkpoint.folder import load
from qkv.errors import QkvError
torch.set_num_threads(1)
load(Path(sys.argv[2]))
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + (int(sys.argv[3]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    print(load(Path(sys.argv[1])).model["a"].sum().item())
except QkvError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mebibytes", "said"), [(190, "0.0"), (60, "OutOfMemoryError")])
def test_a_file_is_in_memory_once(mebibytes: int, said: str, tmp_path: Path) -> None:
    """128 MiB of weights, once with less than one and a half times their size, once with less than half of it."""
    save(tmp_path / "run", Contents({"a": torch.zeros(32 << 20)}, {}))
    save(tmp_path / "small", Contents({"a": torch.zeros(2)}, {}))
    arguments = [str(tmp_path / "run"), str(tmp_path / "small"), str(mebibytes)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        check=False,
    )
    assert done.stdout.startswith(said), done.stderr


@pytest.mark.parametrize("longest", [True, "x", -5, 0, 1.5, None])
def test_a_length_that_is_no_length_is_refused(longest: object, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x\n")
    with pytest.raises(ConfigError, match="longest: expected an integer of at least 1; got "):
        read_lines(tmp_path / "text", longest=longest)  # type: ignore[arg-type]


def test_a_tokenizer_of_endless_pieces_and_one_with_two_of_a_key_are_refused() -> None:
    whole = Tokenizer.learn(["ab"], kind="word").to_json()
    with pytest.raises(DataError, match="the same key twice"):
        Tokenizer.from_json(whole.replace('"kind"', '"lowercase": true, "kind"'))
    document = json.loads(whole) | {"pieces": [*SPECIALS, "x" * (1 << 24)]}
    with pytest.raises(DataError, match="pieces of at most 16,777,216 characters in all"):
        Tokenizer.from_json(json.dumps(document))


def test_an_exhausted_memory_is_named_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("x\n")

    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(corpus, "iterate_lines", exhausted)
    with pytest.raises(OutOfMemoryError, match=r"text: expected enough memory for it; got none left"):
        read_lines(tmp_path / "text")
    save(tmp_path / "run", Contents({"a": torch.ones(2)}, {}))
    monkeypatch.setattr(torch, "empty", exhausted)
    with pytest.raises(OutOfMemoryError, match=r"model\.safetensors: expected enough memory"):
        load(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [5]},
        {"shape": [-3]},
        {"shape": [True, 3]},
        {"shape": [1 << 62, 1 << 62]},
        {"dtype": "F31"},
        {"data_offsets": [4, 16]},
        {"data_offsets": [0, 8]},
        {"data_offsets": [0, 1 << 70]},
        {"more": 1},
    ],
)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    data, _ = pack({"a": torch.ones(3)}, "model")
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    table["a"] |= change
    text = json.dumps(table).encode()
    path = tmp_path / "model"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with path.open("rb") as stream, pytest.raises(CheckpointError, match="expected safetensors; got "):
        read_header(stream, path.stat().st_size, "model")


@pytest.mark.parametrize("name", [manifests.TRAINER_TENSORS, manifests.TRAINER_NUMBERS])
@pytest.mark.parametrize("data", [None, b""], ids=["changed", "empty"])
def test_a_model_whose_trainer_s_state_is_damaged_is_not_loaded(name: str, data: bytes | None, tmp_path: Path) -> None:
    trainer = TrainerState({"moment": torch.zeros(4)}, {"step": 7})
    save(tmp_path / "run", Contents({"a": torch.zeros(2)}, {}, trainer=trainer))
    path = tmp_path / "run" / name
    sound = path.read_bytes()
    path.write_bytes(sound[:-2] + bytes([sound[-2] ^ 1]) + sound[-1:] if data is None else data)
    later = load_weights_later(tmp_path / "run").model
    with pytest.raises(CheckpointError, match=f"{name}: expected .* got an altered file"):
        later["a"]

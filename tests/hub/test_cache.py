"""A model is read by its name from the local cache of huggingface_hub, which need not be installed."""

import shutil
from pathlib import Path

import pytest
from tests.hub.test_families import HERE

import qkv
from qkv.errors import CheckpointError
from qkv.hub.cache import cached
from qkv.tasks.origin import open_origin

REVISION = "0" * 39 + "1"


def store(cache: Path, name: str = "models--org--tiny") -> Path:
    """Store a model as the library does: links in a snapshot to blobs beside it."""
    model = cache / name
    for part in ("refs", "blobs", f"snapshots/{REVISION}"):
        (model / part).mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(HERE / "llama" / file, model / "blobs" / f"blob-{file}")
        (model / "snapshots" / REVISION / file).symlink_to(Path("..", "..", "blobs", f"blob-{file}"))
    return model


@pytest.mark.parametrize(
    ("variable", "folder"), [("HF_HUB_CACHE", "."), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_a_model_is_found_by_its_name(
    variable: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    store(tmp_path / folder)
    found, other = (
        qkv.load(name).generate(["the cat"], tokens=4, temperature=0) for name in ("org/tiny", HERE / "llama")
    )
    assert found == other
    by_name, by_folder = open_origin(Path("org/tiny"), "generate"), open_origin(HERE / "llama", "generate")
    assert by_name is not None
    assert by_folder is not None
    assert by_name.digest == by_folder.digest


def test_what_is_not_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    model = store(tmp_path / "cache", "models--tiny")
    assert cached(Path("tiny")) == model / "snapshots" / REVISION
    for name in ("other", "../cache/models--tiny", "org/tiny/x"):
        assert cached(Path(name)) == Path(name)
    with pytest.raises(CheckpointError, match="no such folder"):
        qkv.load("other")
    (model / "refs" / "main").write_text("../../..")
    assert cached(Path("tiny")) == Path("tiny")
    (tmp_path / "tiny").mkdir()
    assert cached(Path("tiny")) == Path("tiny")

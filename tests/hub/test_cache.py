"""A model is read by its name from the local cache of huggingface_hub, which need not be installed, or downloaded."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.hub.test_families import HERE

import qkv
from qkv.errors import CheckpointError, UnsupportedError
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


FILES = ("config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin", "onnx/model.safetensors")
LOAD = """
import sys, qkv
name, download = sys.argv[1], sys.argv[2] == "download"
try:
    print(*qkv.load(name, download=download).generate(["the cat"], tokens=4, temperature=0))
except qkv.errors.CheckpointError as error:
    print(error.argument, error.expected)
"""


class Hub(BaseHTTPRequestHandler):
    """A hub with one model, org/tiny, by the addresses that huggingface_hub asks for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_GET

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/models/org/tiny/revision/main":
            table = {"id": "org/tiny", "sha": REVISION, "siblings": [{"rfilename": name} for name in FILES]}
            return self.send(json.dumps(table).encode(), {"Content-Type": "application/json"})
        if path == f"/api/models/org/tiny/tree/{REVISION}":
            entries = [
                {"type": "file", "path": name, "size": 1, "oid": sha256(name.encode()).hexdigest()} for name in FILES
            ]
            return self.send(json.dumps(entries).encode(), {"Content-Type": "application/json"})
        prefix = f"/org/tiny/resolve/{REVISION}/"
        if path.startswith(prefix):
            name = path.removeprefix(prefix)
            self.asked.append(f"{self.command} {name}")
            content = (HERE / "llama" / name).read_bytes()
            return self.send(content, {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": REVISION})
        return self.send(b"", {"X-Error-Code": "RepoNotFound"}, 404)

    def send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": f"{len(content)}"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", Hub.asked
    server.shutdown()
    server.server_close()


def test_a_model_is_downloaded_only_where_that_is_asked_for(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    endpoint, asked = hub

    def run(name: str, *how: str) -> str:
        variables = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", LOAD, name, *how]
        result = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
        return result.stdout.rstrip("\n")

    assert run("org/tiny", "local") == "org/tiny a checkpoint or a run folder"
    assert asked == []
    expected = qkv.load(HERE / "llama").generate(["the cat"], tokens=4, temperature=0)[0]
    assert run("org/tiny", "download") == expected
    read = [f"GET {name}" for name in ("config.json", "model.safetensors", "tokenizer.json")]
    assert sorted(line for line in asked if line.startswith("GET")) == read
    assert run("org/tiny", "local") == run("org/tiny", "download") == expected
    assert sorted(line for line in asked if line.startswith("GET")) == read
    assert run("org/other", "download") == "org/other a model that can be downloaded"


def test_downloading_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError, match="pip install huggingface_hub"):
        qkv.load("org/tiny", download=True)
    qkv.load("example", download=True)

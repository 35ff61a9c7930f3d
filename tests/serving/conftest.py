"""A server of every kind of model, as a user starts it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tests.fuzz.models import families

from qkv.checkpoint.folder import save

TOKEN = "a-token-of-the-tests"


class Running(NamedTuple):
    """A server: its process, and a client that knows its token."""

    process: subprocess.Popen[str]
    client: httpx.Client


@contextmanager
def serving(*arguments: str | Path) -> Iterator[Running]:
    """Start a server, and end it."""
    command = [sys.executable, "-m", "qkv", "serve", *map(str, arguments)]
    environment = os.environ | {"QKV_TOKEN": TOKEN}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"(http://\S+)/openapi.json", line):
                break
        else:
            raise AssertionError("".join(lines))
        try:
            with httpx.Client(
                base_url=found[1], headers={"authorization": f"Bearer {TOKEN}"}, timeout=120, trust_env=False
            ) as client:
                yield Running(process, client)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family."""
    folder = tmp_path_factory.mktemp("served")
    paths = {name: folder / name.replace(" ", "-") for name in families()}
    for name, contents in families().items():
        save(paths[name], contents)
    return paths


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[httpx.Client]:
    """The client of a server of every family and of the packaged example."""
    with serving("example", *folders.values(), "--port", "0", "--waiting", "64", "--batch", "16") as running:
        yield running.client

"""How the processes of a training meet: what the environment says, and who can reach them."""

import contextlib
import socket

import pytest

from qkv.cli.processes import _listening, together
from qkv.errors import ConfigError
from qkv.training.processes import in_environment

PLACE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize("rank", ["-1", "2", "²", "x", "1" * 5000, "1.0", " 0"])
def test_a_wrong_number_of_a_process_is_refused(rank: str) -> None:
    with pytest.raises(ConfigError) as raised:
        in_environment({"RANK": rank, "WORLD_SIZE": "2"})
    assert raised.value.argument == "environment"


@pytest.mark.parametrize("size", ["0", "-2", "٣", ""])
def test_a_wrong_number_of_processes_is_refused_or_ignored(size: str) -> None:
    with pytest.raises(ConfigError) if size else contextlib.nullcontext():
        assert in_environment({"RANK": "0", "WORLD_SIZE": size}) is None


@pytest.mark.parametrize("changed", [{"MASTER_PORT": port} for port in ("", "x", "99999", "taken")] + [{}])
def test_a_first_process_that_cannot_be_is_refused(changed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = {"MASTER_PORT": str(other.getsockname()[1])} if changed.get("MASTER_PORT") == "taken" else changed
        for name, text in {"RANK": "0", "WORLD_SIZE": "2", **(PLACE if changed else {}), **taken}.items():
            monkeypatch.setenv(name, text)
        with pytest.raises(ConfigError) as raised, together(None, "cpu"):
            pass
    assert raised.value.argument == "environment"


def test_no_other_machine_reaches_the_processes() -> None:
    """Who listens on all networks also answers at other addresses of this machine."""
    store, port = _listening(2)
    store.set("key", "value")
    assert store.get("key") == b"value"
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10)

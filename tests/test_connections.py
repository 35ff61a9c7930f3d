"""Connections to other machines: by which interface, and how soon their end is noticed."""

import socket

import pytest

from qkv.system import interface_to, watched_connections


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "", "::1"])
def test_no_interface_leads_to_this_machine_or_nowhere(host: str) -> None:
    assert interface_to(host) is None


def test_connections_opened_inside_are_watched_and_no_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as before:
            with watched_connections(60):
                inside = socket.create_connection(address)
            with inside, socket.create_connection(address) as after, socket.socket(type=socket.SOCK_DGRAM):
                watched = [
                    bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) for one in (before, inside, after)
                ]
                assert watched == [False, True, False]
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    assert inside.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000

"""Attack the viewer with a thousand connections in every state of a request, and time its owner's requests.

    python -m tests.view.server.soak --seconds 120

Server, attacker and owner are processes of their own; the server is that of `qkv view`. Prints one line of JSON: the
connections that were made, the most descriptors of the server, and how long the owner waited, on new connections and on
one that is kept.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

STATES = (
    "nothing",
    "half a line",
    "half a head",
    "long head",
    "after an answer",
    "half a body",
    "unread",
    "no http",
    "a guess",
)
PROMISED = 0.1
_OWNERS = 0.04


def text(state: str, host: str) -> bytes:
    """What a client sends before it only holds its connection."""
    head = f"Host: {host}\r\n"
    return {
        "nothing": "",
        "half a line": "GET / HT",
        "half a head": f"GET / HTTP/1.1\r\n{head}",
        "long head": f"GET / HTTP/1.1\r\n{head}X: {'y' * 20_000}\r\n",
        "after an answer": f"GET / HTTP/1.1\r\n{head}\r\nGET / HT",
        "half a body": f"POST /x HTTP/1.1\r\n{head}Content-Length: 99\r\n\r\n{{",
        "unread": f"GET /x HTTP/1.1\r\n{head}\r\n" * 20,
        "no http": "\0\r\n\r\n",
        "a guess": f"GET /{'x' * 43}/api/scene HTTP/1.1\r\n{head}\r\n",
    }[state].encode()


def attack(host: str, seconds: float, count: int, rate: int) -> int:
    """Make connections, a number each second, hold the last ones, and now and then send a byte on one of them.

    Returns:
        The connections made.
    """
    draw, held, made, begun = random.Random(0), list[socket.socket](), 0, time.monotonic()
    address = "127.0.0.1", int(host.split(":")[1])
    while (passed := time.monotonic() - begun) < seconds:
        if made >= passed * rate:
            time.sleep(0.001)
            continue
        connection = socket.socket()
        connection.settimeout(5)
        held.append(connection)
        with suppress(OSError):
            connection.connect(address)
            connection.sendall(text(draw.choice(STATES), host))
            made += 1
        with suppress(OSError):
            draw.choice(held).send(b"G", socket.MSG_DONTWAIT)
        if len(held) > count:
            held.pop(draw.randrange(len(held))).close()
    return made


def serve() -> None:
    """Serve as the command does, until killed."""
    from tests.view.server.test_load import looked_at

    from qkv.tasks.viewing import show_until_interrupted

    show_until_interrupted(looked_at(), 0, browser=False)


def ask(connection: HTTPConnection, path: str, cookie: str) -> float:
    """The owner's request; a connection that the server has closed meanwhile is opened again, as browsers do.

    Returns:
        Seconds until the whole answer was there.
    """
    begun = time.monotonic()
    for _ in range(3):
        try:
            connection.request("GET", path, headers={"Cookie": cookie})
            answer = connection.getresponse()
            answer.read()
            break
        except (OSError, HTTPException):
            connection.close()
    assert answer.status == 200
    return time.monotonic() - begun


def enter(host: str, path: str) -> tuple[str, str]:
    """Return the cookie that the address which works once gives, and the path that it is for."""
    connection = HTTPConnection(host, timeout=60)
    connection.request("GET", path)
    cookie, *_, place = connection.getresponse().headers["set-cookie"].split("; ")
    return cookie, place.removeprefix("Path=")


def summary(seconds: list[float]) -> dict[str, float]:
    """The distribution in milliseconds."""
    places = statistics.quantiles(seconds, n=1000, method="inclusive")
    chosen = {"median": places[499], "99 %": places[989], "99.9 %": places[998], "slowest": max(seconds)}
    late = sum(each > PROMISED for each in seconds)
    return {"answers": len(seconds), **{name: round(1e3 * each, 1) for name, each in chosen.items()}, "late": late}


def main(seconds: float, count: int, rate: int) -> None:
    """Attack a server in a process of its own."""
    own = [sys.executable, "-m", "tests.view.server.soak"]
    with subprocess.Popen([*own, "--serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = urlsplit(server.stdout.readline().strip())
        cookie, home = enter(url.netloc, url.path)
        options = ["--attack", url.netloc, "--seconds", seconds, "--count", count, "--rate", rate]
        attacker = subprocess.Popen([*own, *map(str, options)], stdout=subprocess.PIPE, text=True)
        kept, waits, descriptors = HTTPConnection(url.netloc, timeout=60), {"new": [], "kept": []}, 0
        while attacker.poll() is None:
            new = HTTPConnection(url.netloc, timeout=60)
            for name, connection in (("new", new), ("kept", kept)):
                waits[name].append(ask(connection, f"{home}api/scene", cookie))
                time.sleep(_OWNERS / 2)
            new.close()
            descriptors = max(descriptors, len(os.listdir(f"/proc/{server.pid}/fd")))
        server.kill()
    assert attacker.stdout is not None
    found = {"connections": int(attacker.stdout.read()), "held": count, "descriptors": descriptors}
    print(json.dumps(found | {name: summary(each) for name, each in waits.items()}))  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--attack", default="", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
    elif given.attack:
        print(attack(given.attack, given.seconds, given.count, given.rate))  # noqa: T201
    else:
        main(given.seconds, given.count, given.rate)

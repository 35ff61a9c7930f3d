"""Ask the viewer for everything, many thousand times, while others attack it, and measure its memory.

    python -m tests.view.server.steady --requests 30000

The server, in a process of its own, is that of `qkv view`, with more maps than it stores at once. Its owner asks from
four connections for random parts of them and in between for nonsense, ends every twentieth request before the answer
comes, and asks on other connections without ever reading; an attacker holds hundreds of connections in every state.
Prints one line of JSON: the requests by their status, and the server's memory in MiB after each twentieth of them,
which standard error shows as it comes: on a busy machine, a thousand requests can take twenty minutes.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlencode, urlsplit

import torch
from tests.view.server.soak import enter
from tests.view.server.test_load import resident

import qkv
from qkv.tasks.viewing import show_until_interrupted
from qkv.view.scene import Layer, Scene

LAYERS, HEADS, LENGTH = 6, 8, 1_100
CLIENTS = 4
PARTS = 20


def looked_at() -> Scene:
    """Forty-eight heads in all, whose levels take more memory than the viewer stores."""
    generator = torch.Generator().manual_seed(1)
    layers = tuple(
        Layer(
            f"layer {number}",
            "self",
            "text",
            "text",
            *torch.randn(3, HEADS, LENGTH, 8, generator=generator),
            {"mask": qkv.masks.causal()} if number % 2 else {},
        )
        for number in range(LAYERS)
    )
    return Scene("memory", {"text": tuple(map(str, range(LENGTH)))}, layers)


def question(draw: random.Random) -> tuple[str, str, bytes | None]:
    """Return a random request of the page: its method, path and body."""
    layer, head, query, key = (draw.randrange(size) for size in (LAYERS, HEADS, LENGTH, LENGTH))
    level = draw.randrange(3)
    one = {"layer": layer, "head": head}
    map_ = {"how": draw.choice(("mean", "max")), "quantity": draw.choice(("weight", "contribution"))}
    side = -(-LENGTH // (256 << level))
    tile = {"level": level, "row": draw.randrange(side), "column": draw.randrange(side)}
    gets = {
        "scene": {},
        "tokens": {"sequence": 0, "start": 0, "stop": LENGTH},
        "tile": one | tile | map_,
        "progress": one | map_,
        "track": one | {"what": draw.choice(("entropy", "received", "peak")), "level": level},
        "steps": one | {"query": query},
        "cell": one | {"query": query, "key": key},
        "graph": {"layers": ",".join(map(str, range(LAYERS))), "query": query, "top": 4, "frontier": 12},
        "mechanisms": one,
        "heads": {},
        "tile ": one | {"level": draw.randrange(99)} | map_,
        "nothing": {"x" * draw.randrange(1, 500): draw.choice("\0<é")},
    }
    posts = {"cancel": one, "resume": one}
    changes = {"temperature": draw.choice((0.5, 2, "x")), "vector": [draw.random() for _ in range(8)]}
    body = json.dumps(one | {"query": query} | dict(draw.sample(sorted(changes.items()), 1))).encode()
    name = draw.choice((*gets, *("tile",) * 8, *posts, "whatif"))
    if name == "whatif":
        return "POST", "api/whatif", body
    path = f"api/{name.strip()}?{urlencode(gets.get(name, posts.get(name, {})))}".rstrip("?")
    return ("POST", path, b"{}") if name in posts else ("GET", path, None)


def ask(host: str, home: str, cookie: str, count: int, seed: int, statuses: Counter[str]) -> None:
    """Ask on one connection; it is opened again where it ended."""
    draw, connection = random.Random(seed), HTTPConnection(host, timeout=120)
    headers = {"Cookie": cookie, "Content-Type": "application/json"}
    for _ in range(count):
        method, path, body = question(draw)
        try:
            connection.request(method, home + path, body, headers)
            if draw.randrange(PARTS) == 0:
                connection.close()
                statuses["ended early"] += 1
                continue
            answer = connection.getresponse()
            answer.read()
            statuses[str(answer.status)] += 1
        except (OSError, HTTPException) as error:
            statuses[type(error).__name__] += 1
            connection.close()


def read_nothing(host: str, home: str, cookie: str, stop: threading.Event) -> None:
    """Ask for much, again and again, without reading."""
    held: list[socket.socket] = []
    head = f"Host: {host}\r\nCookie: {cookie}\r\n\r\n"
    while not stop.wait(1):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", int(host.split(":")[1])), timeout=5))
            held[-1].sendall(f"GET {home}api/scene HTTP/1.1\r\n{head}".encode() * 50)
        if len(held) > 40:
            held.pop(0).close()


def main(requests: int) -> None:
    """Ask a server in a process of its own."""
    command = [sys.executable, "-m", "tests.view.server.steady", "--serve"]
    attacker = [sys.executable, "-m", "tests.view.server.soak"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = urlsplit(server.stdout.readline().strip())
        cookie, home = enter(url.netloc, url.path)
        attack = ["--attack", url.netloc, "--seconds", "1e6", "--count", "300", "--rate", "50"]
        attacking = subprocess.Popen([*attacker, *attack], stdout=subprocess.DEVNULL)
        stop, statuses, memory = threading.Event(), Counter[str](), []
        silent = threading.Thread(target=read_nothing, args=(url.netloc, home, cookie, stop))
        silent.start()
        begun = time.monotonic()
        for part in range(PARTS):
            count = requests // PARTS // CLIENTS
            threads = [
                threading.Thread(target=ask, args=(url.netloc, home, cookie, count, CLIENTS * part + number, statuses))
                for number in range(CLIENTS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            memory.append(resident(server.pid) >> 20)
            print(f"{sum(statuses.values())} requests, {memory[-1]} MiB", file=sys.stderr, flush=True)  # noqa: T201
        seconds = round(time.monotonic() - begun)
        stop.set()
        silent.join()
        attacking.kill()
        server.kill()
    print(json.dumps({"statuses": statuses, "seconds": seconds, "MiB": memory}))  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        show_until_interrupted(looked_at(), 0, browser=False)
    else:
        main(arguments.requests)

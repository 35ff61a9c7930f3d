"""Many clients at once: every answer correct, memory flat."""

import os
import random
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import qkv
from qkv.view.scene import Layer, Scene
from qkv.view.server.serve import Serving

LENGTH = 2_200


def looked_at():
    query, key, value = torch.randn(3, 1, LENGTH, 8, generator=torch.Generator().manual_seed(3))
    layer = Layer("one", "self", "text", "text", query, key, value, {"mask": qkv.masks.causal()})
    return Scene("long", {"text": tuple(map(str, range(LENGTH)))}, (layer,))


@pytest.fixture(scope="module")
def zoomed():
    """A scene with a few levels, and every level of its exact matrix."""
    scene = looked_at()
    weights = scene.layers[0].map().dense()[0]
    levels = []
    for level in range(5):
        padding = -LENGTH % (1 << level)
        padded = F.pad(weights, (0, padding, 0, padding), value=torch.nan)
        blocks = padded.view(padded.shape[0] >> level, 1 << level, -1, 1 << level)
        levels.append(blocks.transpose(1, 2).flatten(2).nanmean(-1).numpy())
    return scene, levels


def zoom(url, levels, seconds, seed, wrong):
    """One client that requests random tiles and compares them with the exact levels."""
    draw = random.Random(seed)
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                level = draw.randrange(len(levels))
                row, column = (draw.randrange(-(-levels[level].shape[0] // 256)) for _ in range(2))
                answer = client.get(
                    f"api/tile?layer=0&head=0&level={level}&row={row}&column={column}&how=mean&quantity=weight"
                )
                shape = [int(size) for size in answer.headers["x-qkv-shape"].split(",")]
                found = np.frombuffer(answer.content, "<f4").reshape(shape)
                expected = levels[level][256 * row : 256 * row + 256, 256 * column : 256 * column + 256]
                exact = answer.headers["x-qkv-state"] == "exact"
                if exact and not np.allclose(found, expected, rtol=1e-4, atol=1e-6):
                    wrong.append(f"level {level}, {row}, {column}")
    except Exception as error:
        wrong.append(repr(error))


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def crowd(url, levels, clients, seconds):
    wrong = []
    threads = [threading.Thread(target=zoom, args=(url, levels, seconds, seed, wrong)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_few_clients_get_right_answers(zoomed):
    scene, levels = zoomed
    with Serving(scene) as serving:
        crowd(serving.url, levels, clients=4, seconds=0.5)


@pytest.mark.slow
def test_thirty_two_clients_zoom_for_a_minute_and_memory_stays_flat(zoomed):
    _, levels = zoomed
    # A separate process, to measure the server without its clients.
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        url = server.stdout.readline().strip()
        crowd(url, levels, clients=32, seconds=15)
        before = resident(server.pid)
        crowd(url, levels, clients=32, seconds=60)
        grown = resident(server.pid) - before
        server.stdin.close()
    assert grown < 64 << 20, f"{grown >> 20} MiB"


if __name__ == "__main__":
    with Serving(looked_at()) as served:
        print(served.url, flush=True)  # noqa: T201
        sys.stdin.read()

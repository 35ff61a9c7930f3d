"""The viewer at a length where the matrix does not fit in memory: response times and memory.

    python -m benchmarks.viewer [--length 131072] [--width 64]

One causal self-attention head, with its row state as in a recording. The server runs as in `qkv view` and is queried
over HTTP. The forward pass is timed as a reference for the machine.
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import torch
from benchmarks.kept import keep

import qkv
from qkv.view.answers.maps import PYRAMIDS, TILES
from qkv.view.scene import Layer, Scene
from qkv.view.server.serve import Serving

RESULTS = Path(__file__).parent / "results" / "viewer.json"
REPEATS = 15


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def scene(length: int, width: int) -> tuple[Scene, float]:
    query, key, value = torch.randn(3, 1, length, width, generator=torch.Generator().manual_seed(0))
    begun = time.perf_counter()
    state = qkv.attention_with_state(query, key, value, mask=qkv.masks.causal())[1]
    forward = time.perf_counter() - begun
    layer = Layer("one", "self", "text", "text", query, key, value, {"mask": qkv.masks.causal()}, state)
    return Scene("a long text", {"text": tuple(map(str, range(length)))}, (layer,)), forward


def asked(client: httpx.Client, question: str) -> tuple[float, httpx.Response]:
    begun = time.perf_counter()
    answer = client.get(f"api/{question}")
    answer.raise_for_status()
    return time.perf_counter() - begun, answer


def tile(level: int, row: int = 0, column: int = 0) -> str:
    return f"tile?layer=0&head=0&level={level}&row={row}&column={column}&how=mean&quantity=weight"


def spread(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 4), "largest": round(max(seconds), 4), "of": len(seconds)}


def watch(client: httpx.Client, top: int, length: int, patience: float) -> dict[str, Any]:
    """Query like a user who zooms, first while the exact levels are being computed, then when they are done."""
    overview, first = asked(client, tile(top))
    found: dict[str, Any] = {"overview": round(overview, 3), "overview_state": first.headers["x-qkv-state"]}
    places = [length // 256 * number // (REPEATS + 1) for number in range(1, REPEATS + 1)]
    asked(client, tile(0, 1, 0))
    found["full_resolution_meanwhile"] = spread([asked(client, tile(0, at, at // 2))[0] for at in places])
    found["full_resolution_cached"] = spread([asked(client, tile(0, at, at // 2))[0] for at in places])
    begun, progress = time.perf_counter(), {"state": "running", "done": 0.0}
    while progress["state"] == "running" and time.perf_counter() - begun < patience:
        time.sleep(0.5)
        progress = asked(client, "progress?layer=0&head=0&how=mean&quantity=weight")[1].json()
    found["exact_after"] = round(time.perf_counter() - begun, 1)
    found["progress"] = progress
    found["overview_then"] = spread([asked(client, tile(top))[0] for _ in range(REPEATS)])
    found["overview_then_state"] = asked(client, tile(top))[1].headers["x-qkv-state"]
    found["full_resolution"] = spread([asked(client, tile(0, at + 1, at // 3))[0] for at in places])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=131_072)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--patience", type=float, default=1800.0)
    given = parser.parse_args()
    looked_at, forward = scene(given.length, given.width)
    with Serving(looked_at) as serving, httpx.Client(base_url=serving.url, timeout=120) as client:
        layer = asked(client, "scene")[1].json()["layers"][0]
        before = resident()
        found = watch(client, layer["levels"] - 1, given.length, given.patience)
        found |= {"memory_grown_mib": resident() - before, "kept_mib": serving.handler.maps.bytes >> 20}
    report = {
        "length": given.length,
        "width": given.width,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
        "forward": round(forward, 1),
        "limit_mib": PYRAMIDS + TILES >> 20,
        **found,
    }
    keep(RESULTS, report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

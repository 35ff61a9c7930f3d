"""A long text in a published model, opened in the viewer: seconds until it is there, and of each tile and view.

    python -m benchmarks.loaded_map [--length 32768]

A folder of the shape of Llama (2 layers, width 256, 8 heads, vocabulary 512, random weights) is written, loaded and
queried over HTTP, all as `qkv view FOLDER --file TEXT` does. While the exact levels of a head are computed, tiles are
asked for at each zoom level, none of them twice; then the first overview of every head, and all other views.
"""

import argparse
import json
import os
import platform
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import torch
from benchmarks.kept import keep
from benchmarks.viewer import asked, resident, spread

import qkv
from qkv.data.tokenizer import Tokenizer
from qkv.hub.families.load import build_as
from qkv.hub.published import PublishedConfig
from qkv.models.language_model import LanguageModel
from qkv.tasks.load import load
from qkv.view.answers.maps import PYRAMIDS, TILES
from qkv.view.server.serve import Serving

RESULTS = Path(__file__).parent / "results" / "loaded_map.json"
LAYERS, WIDTH, HEADS, VOCABULARY = 2, 256, 8, 512
EACH = 8
VIEWS = {
    "steps": "steps?layer=1&head=3&query={last}",
    "cell": "cell?layer=1&head=3&query={last}&key=7",
    "graph": "graph?layers=0,1&query={last}&top=4&frontier=8",
    "mechanisms": "mechanisms?layer=1&head=3",
    "track": "track?layer=1&head=3&what=received&level=7",
    "tokens": "tokens?sequence=text&start=0&stop=512",
    "heads": "heads?",
}


def write_folder(folder: Path, text: str, length: int) -> None:
    """Write a Llama with random weights, and a tokenizer of the text."""
    torch.manual_seed(0)
    table = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 3 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": length,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    tokenizer = Tokenizer.learn([text[:50_000]], size=VOCABULARY)
    model = build_as(PublishedConfig(json.dumps(table), "lm_head.weight"), LanguageModel, "a language model")
    qkv.hub.save(model, folder, tokenizer=tokenizer)


def long_text(words: int) -> str:
    draws = random.Random(0)
    lexicon = ["".join(draws.choices("abcdefghijklmnop", k=2 + number % 7)) for number in range(300)]
    return " ".join(draws.choices(lexicon, k=words))


def tile(layer: int, head: int, level: int, row: int, column: int) -> str:
    return f"tile?layer={layer}&head={head}&level={level}&row={row}&column={column}&how=mean&quantity=weight"


def watch(client: httpx.Client, layer: dict[str, Any], length: int) -> dict[str, Any]:
    """Query each zoom level, each head and each view."""
    top = layer["levels"] - 1
    found: dict[str, Any] = {"first overview": round(asked(client, tile(0, 0, top, 0, 0))[0], 3)}
    for level in range(top):
        side = -(-length >> level) // 256
        places = {((k * 7919 + 3) % side, (k * 6151) % side) for k in range(EACH)}
        seconds = [asked(client, tile(0, 0, level, max(at), min(at)))[0] for at in sorted(places)]
        found[f"tile, level {level}"] = spread(seconds)
    others = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)][1:]
    found["overview of another head"] = spread([asked(client, tile(*at, top, 0, 0))[0] for at in others])
    for name, question in VIEWS.items():
        found[name] = round(asked(client, question.format(last=length - 1))[0], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=32_768)
    given = parser.parse_args()
    text = long_text(given.length)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "llama")
        write_folder(folder, text, given.length)
        begun = time.perf_counter()
        scene = load(folder).scene(text, tokens=given.length)
        opened = time.perf_counter() - begun
    with Serving(scene) as serving, httpx.Client(base_url=serving.url, timeout=120) as client:
        seconds, answer = asked(client, "scene")
        before = resident()
        found = {"load and read": round(opened, 1), "scene": round(seconds, 3)}
        found |= watch(client, answer.json()["layers"][0], given.length)
        found |= {"memory grown, MiB": resident() - before}
    report = {
        "length": given.length,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
        "limit, MiB": PYRAMIDS + TILES >> 20,
        **found,
    }
    keep(RESULTS, report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

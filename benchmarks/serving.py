"""Requests per second of `qkv serve`, beside CTranslate2 behind the same front, and an answer that costs nothing.

    python -m benchmarks.serving RUN --texts FILE                 # a Transformer translator; needs serve and export
    python -m benchmarks.serving RUN --texts FILE --soak 100000   # memory over so many requests, qkv alone

Each contender is a server in a process of its own with one thread for its model: the same connections, guard, queue and
batches; only what answers a batch differs. Clients send the lines of the file, one a request, greedy, and wait for
each answer before the next request. Contenders alternate in turns; a ratio is the median over turns of the ratio within
a turn. Processor time is that of the server's process. Where the machine is shared, only that figure says something.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.kept import keep

RESULTS = Path(__file__).parent / "results" / "serving.json"
NAMES = ("qkv", "CTranslate2", "empty")
BATCH, WAITING = 64, 256
PAGE = os.sysconf("SC_PAGE_SIZE")


class Turn(NamedTuple):
    """What the clients of one turn saw.

    Attributes:
        statuses: how many answers had each status.
        seconds: of each answer that was given.
        lasted: seconds of the turn.
    """

    statuses: dict[int, int]
    seconds: list[float]
    lasted: float


def ctranslate2(run: Path, folder: Path) -> Callable[[Sequence[str], Any], list[dict[str, object]]]:
    """Return what CTranslate2 answers, with the tokens and the longest answer of qkv."""
    import ctranslate2

    import qkv
    from qkv.tasks.exporting import export

    translator: Any = qkv.load(run)
    export(run, "ctranslate2", folder)
    engine = ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)
    target, source = translator.tokenizer, translator.tokenizer.source
    ids = {piece: number for number, piece in enumerate(target.vocabulary.pieces)}

    def compute(texts: Sequence[str], _: object) -> list[dict[str, object]]:
        tokens = [[source.vocabulary.pieces[i] for i in source.encode(text)] for text in texts]
        most = int(translator.limit(torch.tensor([max(map(len, tokens))])))
        found = engine.translate_batch(tokens, beam_size=1, max_decoding_length=most, max_batch_size=BATCH)
        return [{"translation": target.decode([ids[token] for token in one.hypotheses[0]])} for one in found]

    return compute


def serve(pipe: Connection, name: str, run: Path, waiting: int) -> None:
    """Serve one contender; send its port."""
    torch.set_num_threads(1)
    from qkv.http.connections import listening, server_of
    from qkv.serving.app import Service, application
    from qkv.serving.guard import ServerGuard
    from qkv.serving.models import open_models
    from qkv.serving.serve import ManyClients

    with tempfile.TemporaryDirectory() as folder, listening("127.0.0.1", 0) as listener:
        (model,) = open_models([run], "cpu").values()
        if name == "CTranslate2":
            model = model._replace(compute=ctranslate2(run, Path(folder) / "model"))
        elif name == "empty":
            model = model._replace(compute=lambda texts, _: [{"translation": ""} for _ in texts])
        service = Service({"model": model._replace(name="model")}, batch=BATCH, waiting=waiting, timeout=60.0)
        port = listener.getsockname()[1]
        pipe.send(port)
        guard = ServerGuard(application(service), ["127.0.0.1"], port, "")
        asyncio.run(server_of(guard, ManyClients).serve([listener]))


async def _client(port: int, texts: Iterator[bytes], until: Callable[[], bool], turn: Turn) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /models/model HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n".encode()
    while not until():
        body, start = next(texts), time.perf_counter()
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = answer.split(b"content-length:")[1].split(b"\r\n")[0]
        await reader.readexactly(int(length))
        status = int(answer.split(b" ")[1])
        turn.statuses[status] = turn.statuses.get(status, 0) + 1
        if status == 200:
            turn.seconds.append(time.perf_counter() - start)
    writer.close()


async def load(port: int, clients: int, texts: Iterator[bytes], requests: int) -> Turn:
    """Send requests with so many clients at once."""
    turn, left = Turn({}, [], 0.0), itertools.count()
    start = time.perf_counter()
    await asyncio.gather(*(_client(port, texts, lambda: next(left) >= requests, turn) for _ in range(clients)))
    return turn._replace(lasted=time.perf_counter() - start)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20


class Contender(NamedTuple):
    """A server that runs.

    Attributes:
        port: where it listens.
        process: in which it runs.
    """

    port: int
    process: Any


def started(name: str, run: Path, waiting: int) -> Contender:
    """Start a contender."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs, name, run, waiting), daemon=True)
    process.start()
    theirs.close()  # so that a contender that ends is an EOFError here, not a wait for ever
    return Contender(ours.recv(), process)


def compare(run: Path, texts: Iterator[bytes], clients: int, turns: int, requests: int) -> dict[str, Any]:
    """Return the figures of each contender with so many clients."""
    servers = {name: started(name, run, WAITING) for name in NAMES}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    for turn in range(turns + 1):
        for name, (port, process) in servers.items():
            before = processor_seconds(process.pid)
            seen = asyncio.run(load(port, clients, texts, requests))
            assert set(seen.statuses) == {200}, seen.statuses
            if turn:  # the first turn is a warm-up
                seconds = sorted(seen.seconds)
                figures[name].append(
                    {
                        "requests_per_second": len(seconds) / seen.lasted,
                        "processor_ms": (processor_seconds(process.pid) - before) / len(seconds) * 1e3,
                        "p99_ms": seconds[int(0.99 * (len(seconds) - 1))] * 1e3,
                    }
                )
    for contender in servers.values():
        contender.process.kill()
    return {name: _summary(rows, figures["CTranslate2"]) for name, rows in figures.items()}


def _summary(rows: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return medians, and how many times as much one gets done as CTranslate2, with quartiles."""
    summary: dict[str, Any] = {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}
    for name, sign in (("requests_per_second", 1), ("processor_ms", -1)):
        ratios = [(mine[name] / other[name]) ** sign for mine, other in zip(rows, theirs, strict=True)]
        summary[f"times_by_{name}"] = [round(part, 2) for part in statistics.quantiles(ratios, n=4)]
    return summary


def overload(run: Path, texts: Iterator[bytes], clients: int, requests: int) -> dict[str, Any]:
    """Return what ten times as many clients see as inputs may wait."""
    server = started("qkv", run, clients // 10)
    seen = asyncio.run(load(server.port, clients, texts, requests))
    server.process.kill()
    return {"clients": clients, "waiting": clients // 10, "statuses": seen.statuses, "slowest_s": max(seen.seconds)}


def soak(run: Path, texts: Iterator[bytes], requests: int) -> dict[str, Any]:
    """Return the growth of a server's memory between the first and the last of many requests."""
    server = started("qkv", run, WAITING)
    sizes = []
    for _ in range(10):
        seen = asyncio.run(load(server.port, 16, texts, requests // 10))
        assert set(seen.statuses) == {200}, seen.statuses
        sizes.append(round(resident(server.process.pid), 1))
        print(f"{len(sizes) * requests // 10:,} requests: {sizes[-1]} MiB", flush=True)
    server.process.kill()
    return {"requests": requests, "resident_mib": sizes, "growth_percent": round((sizes[-1] / sizes[0] - 1) * 100, 2)}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of a Transformer translator")
    parser.add_argument("--texts", type=Path, required=True, help="the lines that clients send")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400, help="of a turn")
    parser.add_argument("--soak", type=int, default=0, help="so many requests to qkv alone, and the growth of memory")
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    texts = itertools.cycle([json.dumps({"inputs": [line], "beam": 1}).encode() for line in lines])
    report: dict[str, Any] = {"torch": torch.__version__, "batch": BATCH, "threads": 1}
    if options.soak:
        report = {"soak": soak(options.run, texts, options.soak)}
    else:
        report |= {
            f"{clients} clients": compare(options.run, texts, clients, options.turns, options.requests)
            for clients in options.clients
        }
        report["overload"] = overload(options.run, texts, 400, 10 * options.requests)
    for name, figures in report.items():
        print(name, json.dumps(figures))
    keep(RESULTS, report)


if __name__ == "__main__":
    main()

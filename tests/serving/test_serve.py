"""`qkv serve`: answers are those of the commands; whoever may not ask is refused; nothing accepted is lost."""

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.cli.command import refused, run, succeeded
from tests.serving.conftest import TOKEN, serving

from qkv.serving.app import STREAMS
from qkv.serving.guard import LARGEST_BODY
from qkv.serving.models import MOST, MOST_INPUTS
from qkv.settings import options_of
from qkv.tasks.catalog import TASKS

LINES = ["the cat sat on the mat", "a dog ran .", "dog", ""]
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "example": (["Die alte Frau hat einen kleinen Hund gesehen .", "Der Mann liest ein Buch ."], {"beam": 3}),
    "gru": (LINES, {}),
    "monotonic": (LINES, {}),
    "transformer": (LINES, {"beam": 4, "n_best": 2, "max_tokens": 7}),
    "classifier": (LINES[:3], {}),
    "tagger": (LINES[:3], {}),
    "pointer": (["0.1,0.5 0.2,0.3 0.9,0.4", "0.5,0.5"], {"beam": 2}),
    "language": (["the cat"], {"tokens": 12, "seed": 3}),
    "regression": ([[0.25, 0.5], [0.75, -1.0]], {"level": 0.9}),
}
"""For each model inputs and settings."""


def post(client: httpx.Client, name: str, inputs: list[Any], **settings: Any) -> httpx.Response:
    return client.post(f"/models/{name}", json={"inputs": inputs, **settings})


def answers(client: httpx.Client, name: str, inputs: list[Any], **settings: Any) -> list[dict[str, Any]]:
    response = post(client, name, inputs, **settings)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["answers"]
    return found


def commanded(task: str, folder: Path, inputs: list[Any], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What the command answers, without the numbers of lines."""
    flags = [part for name, x in settings.items() for part in (f"--{name.replace('_', '-')}", str(x))]
    if task == "generate":
        flags += ["--prompt", inputs[0]]
    lines = [" ".join(map(str, one)) if isinstance(one, list) else one for one in inputs]
    feed = "".join(line.replace(" ", ",") + "\n" if task == "regress" else line + "\n" for line in lines)
    done = succeeded(run(task, folder, *flags, "--json", feed=feed))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [{name: item for name, item in row.items() if name != "line"} for row in rows]


def expect_alike(found: Any, expected: Any) -> None:
    """Scores are sums of float32, which batches and threads round otherwise; all else is equal."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        expect_alike(list(found.values()), list(expected.values()))
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            expect_alike(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4)
    else:
        assert found == expected


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_command(name: str, server: httpx.Client, folders: dict[str, Path]) -> None:
    inputs, settings = CASES[name]
    task = server.get("/health").json()["models"][name]["task"]
    expected = commanded(task, folders.get(name, Path("example")), inputs, settings)
    expect_alike(answers(server, name, inputs, **settings), expected)
    # Of many requests at once the batches differ, not the answers.
    with ThreadPoolExecutor(8) as clients:
        several = [clients.submit(answers, server, name, [one], **settings) for one in inputs * 4]
    expect_alike([answer for future in several for answer in future.result()], expected * 4)


def test_texts_are_streamed(server: httpx.Client) -> None:
    settings = {"tokens": 12, "seed": 3}
    with server.stream("POST", "/models/language", json={"inputs": ["the cat"], "stream": True, **settings}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert events.pop() == "[DONE]"
    (whole,) = answers(server, "language", ["the cat"], **settings)
    assert "".join(json.loads(event)["text"] for event in events) == whole["text"]


def test_streams_that_nobody_reads_to_their_end_give_their_places_back(server: httpx.Client) -> None:
    body = {"inputs": ["the cat"], "stream": True, "tokens": MOST["tokens"]}
    for _ in range(3 * STREAMS):
        with server.stream("POST", "/models/language", json=body) as stream:
            if stream.status_code == 200:
                next(stream.iter_lines())
    deadline = time.monotonic() + 60
    while post(server, "language", ["the cat"], stream=True, tokens=2).status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.1)


REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "an unknown setting": (400, {"inputs": ["a"], "beem": 3}),
    "a setting out of range": (400, {"inputs": ["a"], "beam": 0}),
    "a setting of another type": (400, {"inputs": ["a"], "beam": "wide"}),
    "a search without end": (400, {"inputs": ["a"], "beam": MOST["beam"] + 1}),
    "a beginning that no answer has": (400, {"inputs": ["a"], "prefix": "cat " * 1000}),
    "a file": (400, {"inputs": ["a"], "attention": "/tmp/map.html"}),
    "no inputs": (400, {}),
    "an empty list": (400, {"inputs": []}),
    "too many inputs": (400, {"inputs": ["a"] * (MOST_INPUTS + 1)}),
    "a number": (400, {"inputs": [1]}),
    "a text": (400, {"inputs": "a"}),
    "two lines": (400, {"inputs": ["a\nb"]}),
    "a stream": (400, {"inputs": ["a"], "stream": True}),
    "a large body": (413, {"inputs": ["a" * LARGEST_BODY]}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_said(what: str, server: httpx.Client) -> None:
    status, body = REFUSED[what]
    response = server.post("/models/gru", json=body)
    assert response.status_code == status
    assert response.json()["error"]


@pytest.mark.parametrize("name", ["gru", "regression", "language"])
def test_rows_and_texts_are_not_taken_for_each_other(name: str, server: httpx.Client) -> None:
    wrong: list[Any] = ["a"] if name == "regression" else [[1.0, 2.0]]
    response = post(server, name, wrong)
    assert response.status_code == 400
    assert "inputs:1" in response.json()["error"]
    assert post(server, "regression", [[1.0]]).status_code == 400


@pytest.mark.parametrize(
    ("status", "method", "path", "headers", "content"),
    [
        (401, "POST", "/models/gru", {"authorization": "Bearer other"}, b"{}"),
        (401, "GET", "/metrics", {"authorization": ""}, b""),
        (200, "GET", "/health", {"authorization": ""}, b""),
        (403, "POST", "/models/gru", {"host": "example.org"}, b"{}"),
        (403, "POST", "/models/gru", {"origin": "http://example.org"}, b"{}"),
        (403, "POST", "/models/gru", {"sec-fetch-site": "cross-site"}, b"{}"),
        (415, "POST", "/models/gru", {"content-type": "text/plain"}, b"{}"),
        (400, "POST", "/models/gru", {"content-type": "application/json"}, b"{"),
        (400, "POST", "/models/gru", {"content-type": "application/json"}, b"[" * 5000),
        (404, "POST", "/models/none", {"content-type": "application/json"}, b"{}"),
        (405, "GET", "/models/gru", {}, b""),
        (405, "OPTIONS", "/models/gru", {"origin": "null"}, b""),
        (431, "GET", "/health", {"x-long": "a" * 20_000}, b""),
    ],
)
def test_whoever_may_not_ask_is_refused(
    status: int, method: str, path: str, headers: dict[str, str], content: bytes, server: httpx.Client
) -> None:
    response = server.request(method, path, headers=headers, content=content)
    assert response.status_code in ({403, 405} if method == "OPTIONS" else {400, 431} if status == 431 else {status})
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_description_has_every_setting(server: httpx.Client) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    models = server.get("/health").json()["models"]
    for name, model in models.items():
        schema = paths[f"/models/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator.check_schema(schema)
        table = TASKS[model["task"]].requests
        assert set(options_of(table)) == set(schema["properties"]) - {"inputs", "stream"}
        if name in CASES:
            inputs, settings = CASES[name]
            jsonschema.validate({"inputs": inputs, **settings}, schema)


def test_figures_count_requests_and_inputs(server: httpx.Client) -> None:
    def figures() -> dict[str, float]:
        lines = server.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    good, bad = (f'qkv_requests_total{{model="classifier",status="{status}"}}' for status in (200, 400))
    before = figures()
    answers(server, "classifier", LINES[:3])
    post(server, "classifier", [1])
    after = figures()
    assert after[good] == before.get(good, 0) + 1
    assert after[bad] == before.get(bad, 0) + 1
    inputs = 'qkv_batch_inputs_sum{model="classifier"}'
    assert after[inputs] == before[inputs] + 3


def test_a_server_that_is_told_to_stop_answers_what_it_has_accepted(tmp_path: Path) -> None:
    with serving("example", "--port", "0") as running, ThreadPoolExecutor(1) as clients:
        inputs = ["Die alte Frau hat einen kleinen Hund gesehen ."] * 200
        asked = clients.submit(post, running.client, "example", inputs, beam=8)
        while not running.client.get("/metrics").text.count("qkv_batch_inputs_count{"):
            time.sleep(0.01)
        time.sleep(0.2)
        running.process.send_signal(signal.SIGTERM)
        assert asked.result().status_code == 200
        assert running.process.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_a_killed_server_leaves_its_port_free() -> None:
    with serving("example", "--port", "0") as running:
        port = running.client.base_url.port
    with serving("example", "--port", str(port)) as running:
        assert running.client.get("/health").status_code == 200


def test_a_client_that_sends_half_a_request_does_not_delay_others(server: httpx.Client) -> None:
    address = (server.base_url.host, server.base_url.port or 0)
    head = f"POST /models/gru HTTP/1.1\r\nhost: {server.base_url.host}:{server.base_url.port}\r\n"
    head += f"authorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    half = [socket.create_connection(address) for _ in range(50)]
    for number, connection in enumerate(half):
        connection.sendall((head + "{" if number % 2 else head[:-10]).encode())
    assert answers(server, "gru", ["dog"])
    for connection in half:
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("example", "--host", "0.0.0.0"), "--token"),
        (("example", "--token", "short"), "--token"),
        (("example", "example"), "example"),
        (("/nowhere/run",), "/nowhere/run"),
        (("example", "--host", "no.such.host.invalid", "--token", TOKEN), "--host"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    arguments: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QKV_TOKEN", raising=False)
    refused(run("serve", *arguments, "--port", "0"), named)

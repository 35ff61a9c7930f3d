"""Access control: real requests over real sockets, from browsers and from other clients."""

import http.client
import json
import logging
import re
import socket
from contextlib import suppress

import httpx
import pytest

from qkv.errors import ConfigError
from qkv.http import connections, messages
from qkv.http.messages import HEADERS, LARGEST_HEAD
from qkv.view.server.guard import LARGEST_BODY, LONGEST_TARGET, new_token
from qkv.view.server.serve import Serving

# One client for all: creating one takes longer than a request.
_ANYONE = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


def raw(port, text, patience=5.0):
    """The raw response to some bytes, valid HTTP or not."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        connection.sendall(text)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except (TimeoutError, ConnectionError):
            pass
        return found


def asked(serving, path, **headers):
    return _ANYONE.get(f"http://127.0.0.1:{serving.port}{path}", headers=headers)


def test_it_listens_on_this_machine_alone(serving):
    assert serving._socket.getsockname()[0] == "127.0.0.1"
    hostname = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in hostname - {"127.0.0.1", "127.0.1.1"}:
        with pytest.raises(OSError):
            socket.create_connection((address, serving.port), timeout=1)


def test_tokens_are_long_and_never_the_same():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"[\w-]{43}", token) for token in tokens)


@pytest.mark.parametrize("change", ["", "x", "A" * 43, "%00", "..", "%2e%2e"])
def test_without_the_token_there_is_nothing(change, serving):
    for path in (f"/{change}/", f"/{change}/api/scene", f"/{change}/static/live.js", "/", ""):
        answer = asked(serving, path)
        assert answer.status_code == 404
        assert answer.json() == {"error": "Not found."}


def test_part_of_the_token_is_not_enough(serving):
    for token in (serving.token[:-1], serving.token + "A", serving.token.swapcase()):
        assert asked(serving, f"/{token}/api/scene").status_code == 404


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "[::1]:{port}", "127.0.0.1:{port}.evil.example", ""],
)
def test_another_host_name_is_refused(host, serving):
    answer = asked(serving, f"/{serving.token}/api/scene", Host=host.format(port=serving.port))
    assert answer.status_code == 403


def test_two_host_names_are_refused(serving):
    hosts = f"Host: 127.0.0.1:{serving.port}\r\nHost: evil\r\n"
    line = f"GET /{serving.token}/api/scene HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n"
    assert b"200 OK" not in raw(serving.port, line.encode())


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "file://"]
)
def test_another_origin_is_refused(origin, serving):
    answer = asked(serving, f"/{serving.token}/api/scene", Origin=origin.format(port=serving.port))
    assert answer.status_code == 403


def test_a_page_of_another_site_is_refused_whatever_origin_it_hides(serving):
    answer = asked(serving, f"/{serving.token}/api/scene", **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403


def test_its_own_origin_and_both_names_are_welcome(serving):
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{serving.port}"
        answer = asked(serving, f"/{serving.token}/api/scene", Host=host, Origin=f"http://{host}")
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "static/../../../../etc/passwd",
        "static/..%2f..%2fpage.py",
        "static/%2e%2e/bundle.py",
        "static//etc/passwd",
        "static/page.html",
        "static/live.js/",
        "static/LIVE.JS",
        "static/live.js%00.css",
        "static/",
        "api/",
        "api/__class__",
        "api/scene/../../static/live.js",
        "..%2f",
        "\\windows\\win.ini",
    ],
)
def test_no_path_reaches_the_file_system(path, serving):
    line = f"GET /{serving.token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nConnection: close\r\n\r\n"
    answer = raw(serving.port, line.encode())
    assert answer.split(b" ", 2)[1] in (b"404", b"400")
    assert b"root:" not in answer
    assert b"import" not in answer


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST", "BREW"])
def test_other_methods_are_refused(method, serving, client):
    for path in ("", "static/live.js", "api/scene"):
        assert client.request(method, path).status_code in (405, 415)


def test_what_changes_something_is_never_got(client):
    for name in ("cancel?layer=0&head=0", "resume?layer=0&head=0", "whatif"):
        assert client.get(f"api/{name}").status_code == 405


def test_head_is_get_without_its_body(client):
    answer = client.head("api/scene")
    assert answer.status_code == 200
    assert answer.content == b""


def test_every_answer_bears_the_policy(serving, client):
    answers = [client.get(path) for path in ("", "static/live.js", "api/scene", "api/tile", "nothing")]
    answers += [asked(serving, "/"), asked(serving, "/", Host="evil")]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


def test_long_addresses_and_bodies_are_refused(client, serving):
    assert client.get("api/scene?" + "x" * LONGEST_TARGET).status_code == 414
    assert client.post("api/whatif", content=b" " * (LARGEST_BODY + 1)).status_code == 413
    pieces = (b" " * 4096 for _ in range(2 * LARGEST_BODY // 4096))
    assert client.post("api/whatif", content=pieces).status_code == 413
    head = f"GET /{serving.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nX: ".encode() + b"y" * (1 << 20)
    assert b"200 OK" not in raw(serving.port, head)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 50_000,
        b"\xff\xfe",
        b"NaN",
        b'"x"',
        b"[]",
        b'{"layer": 1e999}',
        b'{"layer": true}',
        b'{"a": 1}',
    ],
)
def test_a_body_that_is_no_question_is_an_error_and_no_traceback(body, client):
    answer = client.post("api/whatif", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    assert "Traceback" not in answer.text


def test_a_form_of_another_page_cannot_ask(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert client.post("api/whatif", content=b"{}", headers={"Content-Type": kind}).status_code == 415


GOOD = {"layer": "0", "head": "0", "level": "0", "row": "0", "column": "0", "how": "mean", "quantity": "weight"}


@pytest.mark.parametrize(
    "change",
    [{name: value} for name in GOOD for value in ("", "-1", "9" * 5000, "1e3", "0x1", "٣", "nan", "<script>", "\x00")]
    + [{"layer": "2"}, {"head": "2"}, {"level": "7"}, {"row": "1"}, {"unknown": "1"}],
)
def test_a_bad_parameter_is_an_error_that_names_it(change, client):
    answer = client.get("api/tile", params=GOOD | change)
    if len(str(answer.url)) < LONGEST_TARGET:
        assert answer.status_code == 400
        assert next(iter(change)) in answer.json()["error"] or "question" in answer.json()["error"]
        assert len(answer.content) < 1000
        assert answer.content.isascii()


def test_missing_and_doubled_parameters(client):
    assert client.get("api/tile").status_code == 400
    assert client.get("api/tile?layer=0&layer=1").status_code == 400
    assert client.get("api/tile?layer").status_code == 400


def test_who_dawdles_is_hung_up_on(scene, monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    with Serving(scene) as serving:
        with socket.create_connection(("127.0.0.1", serving.port), timeout=300) as connection:
            connection.sendall(b"GET / HT")
            assert connection.recv(1) == b""  # and no timeout: the server has closed it
        idle = [socket.create_connection(("127.0.0.1", serving.port)) for _ in range(30)]
        assert _ANYONE.get(serving.url + "api/scene").status_code == 200
        for connection in idle:
            connection.close()


def test_half_a_request_after_an_answer_is_hung_up_on(scene, monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE", 0.5)
    with Serving(scene) as serving, socket.create_connection(("127.0.0.1", serving.port), timeout=20) as connection:
        line = f"GET /{serving.token}/static/live.js HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\n\r\n"
        connection.sendall(line.encode() + b"GET / HT")
        while connection.recv(65536):
            pass  # ends when the server hangs up, else by a time-out


def test_what_is_left_of_a_refused_request_is_not_waited_for(scene, monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE", 0.5)
    with Serving(scene) as serving:
        head = f"POST /x HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nContent-Length: 99\r\n\r\n"
        with socket.create_connection(("127.0.0.1", serving.port), timeout=20) as connection:
            connection.sendall(head.encode())
            connection.recv(65536)
            with suppress(ConnectionError):
                while connection.send(b" ") and not closed(connection):
                    pass


def closed(connection):
    """Whether the server has hung up; waits a little for it."""
    connection.settimeout(0.05)
    try:
        return not connection.recv(65536)
    except TimeoutError:
        return False


def test_half_requests_never_lock_the_owner_out(scene):
    with Serving(scene) as serving:
        half = [
            socket.create_connection(("127.0.0.1", serving.port))
            for _ in range(3 * connections.TimeoutProtocol.clients)
        ]
        for connection in half:
            with suppress(OSError):
                connection.sendall(b"GET / HT")
        for _ in range(3):
            assert _ANYONE.get(serving.url + "api/scene").status_code == 200
        assert len(serving._server.server_state.connections) <= connections.TimeoutProtocol.clients
        for connection in half:
            connection.close()


@pytest.mark.parametrize("size", [LARGEST_HEAD + 4_000, LARGEST_HEAD + 40_000])
def test_long_headers_are_refused_at_once_and_in_pieces(size, serving):
    head = f"GET /{serving.token}/api/scene HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nConnection: close\r\nX: "
    text = head.encode() + b"y" * size + b"\r\n\r\n"
    assert raw(serving.port, text).split(b" ", 2)[1] in (b"400", b"431")
    assert b"200 OK" in raw(serving.port, head.encode() + b"y" * 8_000 + b"\r\n\r\n")


@pytest.mark.parametrize("text", [b"\0\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_not_http_is_answered_with_the_policy_too(text, serving):
    answer = raw(serving.port, text).decode("ascii").lower()
    for name, value in HEADERS.items():
        assert f"{name}: {value.lower()}\r\n" in answer


def led_to(entered):
    """The path to which the one-time address sends a browser."""
    found = re.search(r'url=(/[\w-]{22}/)"', entered.text)
    assert found is not None
    return found[1]


def test_the_cookie_is_sent_to_no_other_server_of_the_machine(serving):
    """A browser sends the cookies of a host to all of its ports: only a path keeps them from other users' servers."""
    with httpx.Client(timeout=60) as browser:
        entered = browser.get(serving.one_time_url())
        home = led_to(entered)
        for path in ("/", "/api/scene", "/enter/x", f"/{home.strip('/')}x/"):
            assert "cookie" not in browser.build_request("GET", f"http://127.0.0.1:{serving.port + 1}{path}").headers
        assert "cookie" in browser.build_request("GET", f"http://127.0.0.1:{serving.port}{home}api/scene").headers
    cookie = entered.headers["set-cookie"].partition(";")[0]
    assert asked(serving, home, Cookie=cookie).status_code == 200
    assert asked(serving, "/", Cookie=cookie).status_code == 404
    assert asked(serving, home).status_code == 404


def test_a_one_time_url_gives_a_cookie_once(serving):
    address = serving.one_time_url()
    assert serving.token not in address
    with httpx.Client(base_url=f"http://127.0.0.1:{serving.port}", timeout=60) as browser:
        assert browser.get("/api/scene").status_code == 404
        entered = browser.get(address, headers={"Sec-Fetch-Site": "cross-site"})
        assert entered.status_code == 200
        home = led_to(entered)
        assert {"HttpOnly", "SameSite=Strict", f"Path={home}"} <= set(entered.headers["set-cookie"].split("; "))
        assert browser.get(home).status_code == 200
        assert browser.get(f"{home}api/scene").status_code == 200
        assert browser.get(f"{home}static/live.js").status_code == 200
        assert browser.get(f"{home}api/scene", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert _ANYONE.get(address, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert _ANYONE.get(address).status_code == 404
    assert _ANYONE.get(f"http://127.0.0.1:{serving.port}/enter/{'A' * 43}").status_code == 404


def test_the_redirect_file_is_private_and_goes_with_the_viewer(scene):
    with Serving(scene) as serving:
        page = serving.redirect_file()
        assert page.stat().st_mode & 0o077 == 0
        assert page.parent.stat().st_mode & 0o077 == 0
        found = re.search(r"url=(http://[^\"]+)", page.read_text(encoding="utf-8"))
        assert found is not None
        assert serving.token not in page.read_text(encoding="utf-8")
        assert _ANYONE.get(found[1]).status_code == 200
    assert not page.exists()


def test_a_question_that_never_comes_is_refused(scene, monkeypatch):
    monkeypatch.setattr(messages, "PATIENCE", 0.3)
    logged = []
    monkeypatch.setattr(logging.Logger, "handle", lambda logger, record: logged.append(record))
    with Serving(scene) as serving:
        lines = (f"POST /{serving.token}/api/whatif HTTP/1.1", f"Host: 127.0.0.1:{serving.port}", "Content-Length: 9")
        assert raw(serving.port, "\r\n".join((*lines, "", "{")).encode(), patience=20).startswith(b"HTTP/1.1 408")
    assert not logged


def test_who_reads_slowly_does_not_hold_up_the_others(serving, client):
    path = f"/{serving.token}/api/tile?" + "&".join(
        f"{name}={value}" for name, value in (GOOD | {"layer": "1"}).items()
    )
    slow = []
    for _ in range(20):
        connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=20)
        connection.request("GET", path)
        slow.append(connection)
    assert client.get("api/scene").status_code == 200
    assert {connection.getresponse().status for connection in slow} == {200}
    for connection in slow:
        connection.close()


def test_hostile_tokens_arrive_as_text(client, hostile):
    answer = client.get("api/scene")
    assert answer.headers["content-type"] == "application/json"
    assert answer.content.isascii()
    listed = json.loads(answer.content)["sequences"][0]["tokens"]
    assert [token["text"] for token in listed] == [token.encode("utf-8", "replace").decode() for token in hostile]
    assert not any(set(token["shown"]) & set("\x00\x1b\u202e\n") for token in listed)


def test_an_unknown_word_in_an_error_is_quoted_and_cut(client):
    answer = client.get(
        "api/tokens", params={"sequence": "\u202e<svg onload=pwned=1>" + "x" * 500, "start": 0, "stop": 1}
    )
    assert answer.status_code == 400
    assert answer.content.isascii()
    assert len(answer.content) < 400


def test_a_port_that_is_taken(serving, scene):
    with pytest.raises(ConfigError, match="port"):
        Serving(scene, serving.port)


def test_nothing_stays_behind(scene):
    with Serving(scene) as serving:
        assert _ANYONE.get(serving.url).status_code == 200
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", serving.port), timeout=1)
    assert not serving._thread.is_alive()

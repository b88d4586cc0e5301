"""Who may ask, how much, and what becomes of bad requests."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from explored import _MAIN, Server, served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.explore.workers import Busy, Gone, Ticket, TooLong, Workers

JSON = {"content_type": "application/json"}


def test_other_hosts_are_refused(server: Server) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@x"):
        status, said, _ = server.send("GET", "/pooling", host=host)
        assert (status, json.loads(said)["error"]) == (
            403, "this explorer answers to 127.0.0.1 and localhost only",
        )  # fmt: skip
    for host in ("localhost", f"127.0.0.1:{server.port}", f"[::1]:{server.port}"):
        assert server.send("GET", "/pooling", host=host)[0] == 200


def test_other_sites_cannot_post(server: Server) -> None:
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://127.0.0.1:{server.port + 1}"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        status, said, _ = server.send("POST", "/api/pooling/ask", b"{}", **JSON, **headers)
        assert (status, json.loads(said)["error"]) == (
            403, "a question must come from the explorer's own page",
        )  # fmt: skip
    own = {"origin": f"http://127.0.0.1:{server.port}", "sec_fetch_site": "same-origin"}
    assert server.send("POST", "/api/pooling/ask", b"{}", **JSON, **own)[0] == 200


def test_forms_of_other_kinds_are_refused(server: Server) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert server.send("POST", "/api/pooling/ask", b"{}", content_type=kind)[0] == 415
        assert server.send("POST", "/api/upload", b"x,y\n1,2\n", content_type=kind)[0] == 415


def test_the_policy_lets_nothing_inline_run(server: Server) -> None:
    for path in ("/pooling", "/static/main.js", "/nowhere", "/api/hello"):
        headers = server.send("GET", path)[2]
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_what_is_too_large_is_refused_with_a_sentence(server: Server) -> None:
    status, said = server.ask("pooling/ask", {"edits": "x" * 70_000})
    assert (status, said["error"]) == (413, "at most 0.0625 MB are taken at a time; this is more")
    status, said = server.upload(b"x" * (8 * 2**20 + 1))
    assert (status, said["error"]) == (413, "at most 8 MB are taken at a time; this is more")


def test_files_outside_the_package_are_not_served(server: Server) -> None:
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/view/..%2f..%2fapp.py",
        "//etc/passwd",
    ):
        assert server.send("GET", path)[0] == 404


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "a question must be JSON, and this is not"),
        (b"{", "a question must be JSON, and this is not"),
        (b'{"query": NaN}', "a question must be JSON, and this is not"),
        (b"[" * 20_000, "a question must be JSON, and this is not"),
        (b"[1]", "a question must be a JSON object; got [1]"),
        (b'{"kernel": "<b>"}', "kernel must be one of gaussian, boxcar, triangular, epanechnikov, "
         "laplacian, biweight, tricube; got '<b>'"),
        (b'{"bandwidth": 0}', "bandwidth must be a number between 1e-09 and 1e+12; got 0"),
        (b'{"count": 1e9}', "count must be a whole number between 1 and 20000; got 1000000000.0"),
        (b'{"degree": true}', "degree must be a whole number between 0 and 1; got True"),
        (b'{"source": "0123456789abcdef"}', "that table is no longer here: upload its file again"),
        (b'{"edits": "d:100"}', "an edit must name one of 100 points; got 100"),
        (b'{"edits": "rm -rf"}', "edits must be such as a:1,2 or m:5,1,2 or d:5; got 'rm -rf'"),
        (b'{"edits": "a:1,1e300"}', "a point must lie within 1e+09; got '1e300'"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(server: Server, body: bytes, sentence: str) -> None:
    status, said, _ = server.send("POST", "/api/pooling/ask", body, **JSON)
    assert (status, json.loads(said)) == (400, {"error": sentence})


def test_unknown_addresses_are_json_too(server: Server) -> None:
    assert server.ask("cellar/ask", {}) == (404, {"error": "there is no room 'cellar'"})
    status, said = server.ask("pooling/dance", {})
    assert status == 400
    assert said["error"].startswith("the room pooling answers points, curve, ask")
    status, said, _ = server.send("GET", "/nowhere")
    assert (status, json.loads(said)) == (404, {"error": "there is nothing at this address"})
    assert server.send("DELETE", "/api/hello")[0] == 405


def test_elsewhere_a_token_is_needed() -> None:
    with served("--host", "0.0.0.0") as server:
        assert server.process.stdout is not None
        host = {"host": f"somewhere:{server.port}"}
        assert server.send("GET", "/api/hello", **host)[0] == 403
        assert server.send("GET", "/api/hello?token=guess", **host)[0] == 403
        assert server.send("GET", "/api/hello", cookie="qkv-explore=guess", **host)[0] == 403


def test_the_first_page_hands_out_the_token_and_ctrl_c_ends_all() -> None:
    command = [sys.executable, "-c", _MAIN, "explore", "--no-browser", "--port", "0", "--host"]
    process = subprocess.Popen(
        [*command, "0.0.0.0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    address = process.stdout.readline().split()[4]
    server = Server(address.partition("/?")[0], process)
    status, _, headers = server.send("GET", f"/pooling?{address.partition('?')[2]}")
    assert status == 200
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert server.send("GET", "/api/hello", cookie=cookie.partition(";")[0])[0] == 200
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=20)
    assert (process.returncode, complaints) == (0, "")


def test_a_client_that_leaves_does_not_hold_a_worker(server: Server) -> None:
    body = json.dumps({"count": 20000, "kernel": "tricube", "degree": 1}).encode()
    head = (
        "POST /api/pooling/choose HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + body)
    start = time.perf_counter()
    server.answer("pooling/ask", {})
    assert time.perf_counter() - start < 5  # forty searches take longer


class Visitor:
    """A request whose client leaves when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_work_ends_when_its_client_leaves_or_its_time_is_over() -> None:
    """With one thread: what comes next is answered only if that thread is free again."""
    ended: list[str] = []

    def endless(ticket: Ticket) -> None:
        try:
            while True:
                ticket.check()
                time.sleep(0.002)
        except Gone:
            ended.append("endless")
            raise

    async def story() -> None:
        # Patient enough for a busy machine; the hurried ones show what comes when time is over.
        workers = Workers(threads=1, waiting=2, seconds=30)
        hurried = Workers(threads=1, waiting=2, seconds=2)
        leaving, waiting = Visitor(), Visitor()
        first = asyncio.create_task(workers.run(leaving, endless))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(workers.run(waiting, lambda _: 23))
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await workers.run(Visitor(), lambda _: 29)
        assert not second.done()
        leaving.left.set()
        with pytest.raises(Gone):
            await first
        assert await second == 23
        with pytest.raises(TooLong):
            await hurried.run(Visitor(), endless)
        assert await hurried.run(Visitor(), lambda _: 31) == 31  # its one thread is free again
        assert ended == ["endless", "endless"]
        # Work that waits for a thread is not begun for who has left.
        begun: list[int] = []
        gone = Visitor()
        gone.left.set()
        freed = threading.Event()
        slow = asyncio.create_task(workers.run(Visitor(), lambda _: freed.wait(20)))
        await asyncio.sleep(0)  # lets it begin, so that the next one waits
        with pytest.raises(Gone):
            await workers.run(gone, lambda _: begun.append(1))
        freed.set()
        await slow
        assert begun == []
        workers.stop()
        hurried.stop()

    with ThreadPoolExecutor(1) as beside:  # the browser's driver has this thread's event loop
        beside.submit(lambda: asyncio.run(story())).result()


def test_many_at_once_are_answered_or_told_to_wait(server: Server) -> None:
    found: list[tuple[int, float]] = []

    def ask(number: int) -> None:
        start = time.perf_counter()
        status, _ = server.ask("pooling/ask", {"query": number / 20, "seed": number % 5})
        found.append((status, time.perf_counter() - start))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in found} <= {200, 429}
    assert len([1 for status, _ in found if status == 200]) > 25


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
#: Fields of all rooms, and what each of these does with them.
FIELDS = """query kernel bandwidth degree level seed count noise edits source x y key value
similarity where low high text layer head row column temperature mask size painted formula left
right tokens beam model also by weight decay half_life as_of"""
ACTIONS = """pooling/ask pooling/points pooling/curve pooling/kernels pooling/choose pooling/columns
table/columns table/ask table/curve similarity/compare sentence/look sentence/cell sentence/view
sentence/page translate/progress translate/run"""
names, actions = st.sampled_from(FIELDS.split()), st.sampled_from(ACTIONS.split())
#: What gets past the first checks more often.
likely = st.sampled_from(
    ["minilm", "vectors", "formula", "painted", "topk", "gaussian", "boxcar", "fuzzy", "equal",
     "q", "dot(q,k)", "1/0", "log(-1)", "a:1,1", "a:1,1;b:-1,9", "name", "joined", "students",
     "year", "field", "gpa", "90d", [{"key": "field", "query": "civil"}], [{"key": "year"}] * 2,
     1, 2, 3, 0.5, 1e-9, 1e12, -1, "1", "101", "x = 1"]
)  # fmt: skip
texts = st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=actions, body=st.dictionaries(names, anything | likely, max_size=5))
def test_no_question_is_too_strange(server: Server, action: str, body: object) -> None:
    status, said = server.ask(action, body)
    assert status < 500, said
    if status != 200:
        assert list(said) == ["error"]
        assert "\n" not in said["error"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=300)
    | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace"))
)
def test_no_file_is_too_strange(server: Server, content: bytes) -> None:
    status, said = server.upload(content)
    assert status < 500, said


def test_nothing_is_left_on_disk(server: Server) -> None:
    server.upload(b"x,y\n1,2\n3,4\n")
    assert not list(Path(tempfile.gettempdir()).glob("qkv-explore-*/table.csv"))

"""`serve` ends in bounded time, whoever is still connected, and gives up who takes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.responses import Response

from adapters.http_door import listen
from api import streams
from api.auth import LocalOnly
from api.endpoints import Call, for_agents
from api.gateway import Guarded, Metrics, WayIn
from flow_engine.ports.telemetry import Untraced
from flow_engine.use_cases.following import Followed
from service import running
from tests.ports import free_port
from tests.service_process import ROOT, running_service

pytestmark = pytest.mark.anyio

SECOND_SIGNAL = """
import signal, sys
from flows.sqlite_store import SqliteDatabase
from service.cli import app
number, close = int(sys.argv.pop(1)), SqliteDatabase.close
async def again(self):
    print("closes", file=sys.stderr, flush=True)
    signal.raise_signal(number)
    await close(self)
SqliteDatabase.close = again
app()
"""
INTERRUPTED_WHILE_IT_LOADS = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background ignores it
class Interrupted:
    def find_spec(self, name, *more):
        if name == "service.settings":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
runpy.run_module("service.cli", run_name="__main__", alter_sys=True)
"""
MORE_THAN_BUFFERS_TAKE = 32 * 1024 * 1024


async def large(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * MORE_THAN_BUFFERS_TAKE})


async def streamed(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 1024 * 1024, "more_body": True})


@pytest.mark.parametrize(("app", "cut_off"), [(large, 0), (streamed, 1)])
async def test_a_client_that_does_not_read_its_reply_holds_no_end_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, app: Any, cut_off: int
) -> None:  # F42, F46
    monkeypatch.setattr(running, "FINISHED_WITHIN_S", 0.2)
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(running.server_config(app))
    serving = asyncio.create_task(server.serve([listening]))
    with socket.create_connection(listening.getsockname()) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        async with asyncio.timeout(10):
            while not (server.server_state.tasks or server.server_state.total_requests):
                await asyncio.sleep(0.01)
            server.should_exit = True
            await serving
    (told,) = caplog.records
    assert (told.exc_info, told.getMessage()[:25]) == (None, f"Cancel {cut_off} running task(s),")


class _Whole:
    """Answers from the whole body what the application below it would answer."""

    def __init__(self, app: Guarded) -> None:
        self._app = app

    def answer_to(self, scope: dict[str, Any]) -> Callable[[bytes], Awaitable[Response]]:
        return partial(self._app.answer, scope, None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("not asked so")


@pytest.mark.parametrize("whole", [False, True])
async def test_a_request_that_takes_longer_than_a_stop_is_told_to_be_repeated(
    monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:  # F15, F42: it got 500, which agents do not repeat
    monkeypatch.setattr(running, "FINISHED_WITHIN_S", 0.2)
    began = asyncio.Event()

    async def slow(call: Call) -> Response:
        began.set()
        return await asyncio.get_running_loop().create_future()

    endpoint = for_agents("POST /slow", slow, "", None)
    guarded = Guarded(endpoint, WayIn(LocalOnly(), Metrics(), Untraced()))
    app = _Whole(guarded) if whole else guarded
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(running.server_config(cast("Any", app)))
    serving = asyncio.create_task(server.serve([listening]))
    async with httpx.AsyncClient() as client, asyncio.timeout(10):
        asking = asyncio.create_task(client.post(f"http://127.0.0.1:{listening.getsockname()[1]}/slow"))
        await began.wait()
        server.should_exit = True
        reply = await asking
        await serving
    assert (reply.status_code, reply.json()["code"]) == (503, "stopping")
    assert reply.headers["Retry-After"] == "1"


async def test_a_stream_that_is_not_taken_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # F42
    monkeypatch.setattr(streams, "TAKEN_WITHIN_S", 0.2)

    async def entries() -> AsyncGenerator[Followed]:
        while True:
            yield Followed([cast("Any", {"seq": 1, "text": "x" * 1024 * 1024})])

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await streams.EventStream(entries(), nullcontext())(scope, receive, send)

    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(running.server_config(cast("Any", endless)))
    serving = asyncio.create_task(server.serve([listening]))
    with socket.create_connection(listening.getsockname()) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        async with asyncio.timeout(10):
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            while server.server_state.connections:
                await asyncio.sleep(0.01)
            server.should_exit = True
            await serving
    assert not caplog.records


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_while_the_stores_close_ends_the_process(
    tmp_path: Path, number: signal.Signals
) -> None:  # F42: the thread of a store that was not closed was waited for
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE_")}
    command = (str(number.value), "serve", "--port", str(free_port()))
    with subprocess.Popen(
        (sys.executable, "-c", SECOND_SIGNAL, *command),
        cwd=ROOT,
        env={**environment, "FLOW_ENGINE_DATA_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            assert b"Ctrl-C stops it" in process.stderr.readline()
            process.send_signal(number)
            assert process.wait(20) == -number
            assert process.stderr.read() == b"closes\n"
        finally:
            process.kill()


def test_a_program_that_is_interrupted_while_it_loads_ends_without_a_traceback() -> None:  # F42
    command = [sys.executable, "-c", INTERRUPTED_WHILE_IT_LOADS, "serve"]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_a_full_disk_of_the_log_keeps_nothing_from_serving(tmp_path: Path) -> None:  # F46
    with running_service(tmp_path, output=Path("/dev/full")):
        pass

"""A real process answers `/health/live` at once while the dearest documents are saved, compiled and entered.

A second process, which has nothing to do, is asked in step: what it takes longer is the machine's doing, and
only what the busy one takes beyond that counts.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.flow_engine.documents.samples import JsonObject, aio_task, minimal_version
from tests.hostile.test_stalls import LONGEST_STALL_S, NESTED, dense, described
from tests.service_process import running_service

ATTEMPTS = 3
"""Of the worst replies of so many runs the best counts: an overloaded machine delays any process at times."""
ASKED_EVERY_S = 0.01


def errors_only() -> JsonObject:
    """Refused, after everything of it was looked at."""
    return minimal_version(tasks=[{}] * 250_000)


def unconnected() -> JsonObject:
    """As many connections that lead nowhere as a document can hold."""
    return minimal_version(tasks=[aio_task(connectedTasks=["x"] * 200_000)])


DEAR: dict[str, tuple[Callable[[], JsonObject], int]] = {
    "300 tasks, each connected to each": (dense, 201),
    "long loops": (lambda: described("{% for a in $tenant.l %}xxxxxxxxxxxxxx{% endfor %}"), 201),
    "large values as JSON": (lambda: described("{{ $tenant.n }}"), 201),
    "large templates": (lambda: described("{{ $channel }}" * 220), 201),
    "errors only": (errors_only, 422),
    "unknown tasks only": (unconnected, 422),
}


class Asking:
    """Asks a process for `/health/live` again and again; `worst_s` is the slowest reply of a run."""

    def __init__(self, base: str) -> None:
        self._base = urlsplit(base)
        self.worst_s = 0.0

    def until(self, over: threading.Event) -> None:
        connection = http.client.HTTPConnection(self._base.hostname or "", self._base.port, timeout=30)
        try:
            while not over.is_set():
                began = time.perf_counter()
                connection.request("GET", "/health/live")
                connection.getresponse().read()
                self.worst_s = max(self.worst_s, time.perf_counter() - began)
                time.sleep(ASKED_EVERY_S)
        finally:
            connection.close()


def stalled_s(busy: str, idle: str, work: Callable[[], object]) -> float:
    """How much longer the busy process made others wait than the idle one, at the worst."""
    over, askers = threading.Event(), [Asking(busy), Asking(idle)]
    with ThreadPoolExecutor(len(askers)) as pool:
        asking = [pool.submit(asker.until, over) for asker in askers]
        try:
            time.sleep(5 * ASKED_EVERY_S)
            work()
        finally:
            over.set()
        for each in asking:
            each.result()
    return askers[0].worst_s - askers[1].worst_s


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """The base URLs of the busy process and of the idle one."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_service(
                    tmp_path_factory.mktemp(name),
                    FLOW_ENGINE_LOG_LEVEL="error",
                    FLOW_ENGINE_SAMPLES="false",
                )
            )
            for name in ("busy", "idle")
        ]


@pytest.mark.parametrize("name", DEAR)
def test_others_are_answered_while_a_dear_document_is_saved_compiled_and_entered(  # A2 A3 D1
    processes: Sequence[str], name: str
) -> None:
    made, expected = DEAR[name]
    document = {k: v for k, v in made().items() if k not in ("_id", "conversationalFlowId")}
    busy, idle = processes
    stalls: list[float] = []
    with httpx.Client(base_url=busy, timeout=120) as client:
        flow = {"name": name, "campaignId": "c", "updatedBy": "ada"}
        flow_id = client.post("/v1/flows", json=flow).json()["id"]

        def saved_and_entered(number: int) -> None:
            document["globalPrompt"] = f"attempt {number}"  # its compiled version is kept for the same text
            saved = client.post(
                f"/v1/flows/{flow_id}/versions?tag=t{number}", content=json.dumps(document).encode()
            )
            assert saved.status_code == expected, saved.text[:500]
            if expected == 201:
                contact: dict[str, Any] = {
                    "conversationId": f"{name} {number}",
                    "contactId": "call-1",
                    "conversationalFlowVersionId": saved.json()["versionId"],
                    "channel": "phone",
                    "tenant": NESTED,
                }
                entered = client.post("/v1/handle-new-contact", json=contact)
                assert entered.status_code == 200, entered.text[:500]

        for number in range(ATTEMPTS):
            stalls.append(stalled_s(busy, idle, lambda n=number: saved_and_entered(n)))
            if stalls[-1] < LONGEST_STALL_S:
                return
    pytest.fail(f"/health/live waited {[round(stall, 3) for stall in stalls]} s longer than elsewhere")


class _Stubborn(BaseHTTPRequestHandler):
    """Answers, but holds everybody up while it is at work."""

    protocol_version = "HTTP/1.1"
    loop = threading.Lock()

    def do_GET(self) -> None:
        with self.loop:
            time.sleep(0.4 if self.path == "/work" else 0)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is written."""


@contextmanager
def stubborn() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stubborn) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def test_a_process_that_stalls_is_found_out(processes: Sequence[str]) -> None:  # negative control
    with stubborn() as base:
        stalls = [stalled_s(base, processes[1], lambda: httpx.get(f"{base}/work")) for _ in range(ATTEMPTS)]
    assert max(stalls) > LONGEST_STALL_S

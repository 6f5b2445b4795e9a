"""A real process answers `/health/live` at once while the dearest documents are saved, compiled and entered.

How long a reply takes is measured by the clock and by the CPU time that the process spends meanwhile; the
smaller of the two counts, since what a process waits for a core is the machine's doing. A loop that blocks
without computing is not seen. With PLAIN_WALL_CLOCK=1 the clock alone counts: that holds where nothing else
runs, while eight busy programs on two cores delay a reply by more than a stall does.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import psutil
import pytest

from tests.flow_engine.documents.samples import JsonObject, aio_task, minimal_version
from tests.hostile.test_stalls import LONGEST_STALL_S, NESTED, dense, described
from tests.service_process import running_service

pytestmark = pytest.mark.long

ATTEMPTS = 3
"""Of the worst replies of so many runs the best counts."""
ASKED_EVERY_S = 0.01
PLAIN_WALL_CLOCK = os.environ.get("PLAIN_WALL_CLOCK") == "1"


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


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def stalled_s(base: str, process: psutil.Process, work: Callable[[], object]) -> float:
    """How long the process held up a reply to `/health/live` at the worst while it was at work."""
    over, place = threading.Event(), urlsplit(base)

    def ask() -> float:
        slowest = 0.0
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        while not over.is_set():
            began, spent = time.perf_counter(), cpu_s(process)
            connection.request("GET", "/health/live")
            connection.getresponse().read()
            took = time.perf_counter() - began
            slowest = max(slowest, took if PLAIN_WALL_CLOCK else min(took, cpu_s(process) - spent))
            time.sleep(ASKED_EVERY_S)
        connection.close()
        return slowest

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            time.sleep(5 * ASKED_EVERY_S)
            work()
        finally:
            over.set()
        return asking.result()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, psutil.Process]]:
    """Its base URL, and its process."""
    settings = {"FLOW_ENGINE_LOG_LEVEL": "error", "FLOW_ENGINE_SAMPLES": "false"}
    with running_service(tmp_path_factory.mktemp("live"), **settings) as base:
        port = str(urlsplit(base).port)
        yield base, next(child for child in psutil.Process().children() if port in child.cmdline())


@pytest.mark.parametrize("name", DEAR)
def test_others_are_answered_while_a_dear_document_is_saved_compiled_and_entered(  # A2 A3 D1
    service: tuple[str, psutil.Process], name: str
) -> None:
    made, expected = DEAR[name]
    document = {k: v for k, v in made().items() if k not in ("_id", "conversationalFlowId")}
    base, process = service
    stalls: list[float] = []
    with httpx.Client(base_url=base, timeout=120) as client:
        flow = {"name": name, "campaignId": "c", "updatedBy": "ada"}
        flow_id = client.post("/v1/flows", json=flow).json()["id"]

        def saved_and_entered(number: int) -> None:
            document["globalPrompt"] = f"attempt {number}"  # its compiled version is kept for the same text
            saved = client.post(f"/v1/flows/{flow_id}/versions?tag=t{number}", content=orjson.dumps(document))
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
            stalls.append(stalled_s(base, process, lambda n=number: saved_and_entered(n)))
            if stalls[-1] < LONGEST_STALL_S:
                return
    pytest.fail(f"/health/live waited {[round(stall, 3) for stall in stalls]} s")


class _Stubborn(BaseHTTPRequestHandler):
    """Answers, but holds everybody up while it is at work."""

    protocol_version = "HTTP/1.1"
    turn = threading.Lock()

    def do_GET(self) -> None:
        with self.turn:
            until = time.thread_time() + (0.6 if self.path == "/work" else 0)
            while time.thread_time() < until:
                pass
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is written."""


def test_a_process_that_stalls_is_found_out() -> None:  # negative control
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stubborn) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        base = f"http://127.0.0.1:{server.server_port}"
        try:
            stalled = stalled_s(base, psutil.Process(), lambda: httpx.get(f"{base}/work"))
        finally:
            server.shutdown()
            serving.join()
    assert stalled > LONGEST_STALL_S

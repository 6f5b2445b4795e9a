"""Trace, metrics and log of a `worker`, apart from the `serve` that took the turn (F41, F46)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson

from tests.ports import free_port
from tests.redis_fixture import StartRedis, end
from tests.service_process import ROOT, running_service

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
WITHIN_S = 60.0
SAID = "me llamo Ada Lovelace, mi teléfono es el 600 123 123"


@contextmanager
def running_worker(out: Path, err: Path, **environment: str) -> Iterator[None]:
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "worker"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=stdout,
            stderr=stderr,
        )
        try:
            yield
        finally:
            end(process)


def scraped(port: int) -> str:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        return reply.read().decode()
    return ""


def test_a_turn_goes_on_in_another_process(tmp_path: Path, start_redis: StartRedis) -> None:  # F46
    redis_server = start_redis()  # of its own: elsewhere there may be jobs of others
    out, err, port = tmp_path / "out", tmp_path / "err", free_port()
    both = {
        "FLOW_ENGINE_REDIS_URL": redis_server.url,
        "FLOW_ENGINE_DATA_DIR": str(tmp_path),
        "FLOW_ENGINE_TRACES": "console",
    }
    worker = {**both, "FLOW_ENGINE_WORKER_METRICS_PORT": str(port)}
    both.pop("FLOW_ENGINE_DATA_DIR")
    with running_service(tmp_path, **both) as base, running_worker(out, err, **worker):
        ids = {"contactId": "call-1", "conversationId": f"two-processes-{tmp_path.name}"}
        start = {**ids, "conversationalFlowVersionId": "claim-v1", "channel": "phone"}
        assert httpx.post(f"{base}/v1/handle-new-contact", json=start).status_code == 200
        said = {"messageId": "m", "ts": "2026-01-15T09:31:00Z", "type": "message", "src": "user"}
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        turn = {**ids, **said, "body": SAID}
        assert httpx.post(f"{base}/v1/handle-utterance", json=turn, headers=headers).status_code == 200
        deadline = time.monotonic() + WITHIN_S
        while 'flow_engine_jobs_done_total{kind="mine"}' not in scraped(port) and time.monotonic() < deadline:
            time.sleep(0.1)
        metrics = scraped(port)
    assert 'flow_engine_jobs_done_total{kind="mine"} 1.0' in metrics
    assert "flow_engine_event_loop_lag_seconds_count" in metrics
    spans = [orjson.loads(line) for line in err.read_bytes().splitlines() if line.startswith(b'{"name"')]
    (mine,) = [span for span in spans if span["name"] == "job mine"]
    assert mine["context"]["trace_id"] == f"0x{TRACE}"
    assert mine["parent_id"] is not None
    printed = out.read_text() + err.read_text() + metrics
    for secret in ("Lovelace", "600 123", "600123"):
        assert secret not in printed

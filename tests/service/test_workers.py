"""`serve --workers`: the real service in several processes, on one port and one Redis."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from service.cli import app
from tests.ports import free_port
from tests.redis_fixture import RedisServer, end, spawn

WITHIN_S = 120.0
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not spread connections")


def environment(**settings: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE_")}
    return inherited | {f"FLOW_ENGINE_{name}": value for name, value in settings.items()}


@contextmanager
def serving(folder: Path, redis: RedisServer) -> Iterator[tuple[int, subprocess.Popen[bytes], Path]]:
    """The port, the supervisor and its log, once two workers serve. They are to be renewed while it loads."""
    port, log = free_port(), folder / "log"
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "service.cli",
        "serve",
        "--workers",
        "2",
        "--port",
        str(port),
    ]
    process = spawn(command, log, cwd=ROOT, env=environment(REDIS_URL=redis.url, DATA_DIR=str(folder)))
    try:
        wait_for(log, b" fastapi.", process)
        process.send_signal(signal.SIGHUP)
        wait_for(log, b"with 2 workers", process)
        yield port, process, log
    finally:
        end(process)


def wait_for(log: Path, line: bytes, process: subprocess.Popen[bytes], times: int = 1) -> None:
    deadline = time.monotonic() + WITHIN_S
    while log.read_bytes().count(line) < times:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    """The body of a reply of 200 or 201: what was sent as JSON, or text."""
    connection.request(method, path, None if body is None else orjson.dumps(body))
    response = connection.getresponse()
    content = response.read()
    assert response.status in (200, 201), content
    return (
        orjson.loads(content) if response.headers["content-type"] == "application/json" else content.decode()
    )


def ask_anew(port: int, method: str, path: str, body: Any = None) -> Any:
    """By a connection of its own: any worker may answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    try:
        return ask(connection, method, path, body)
    finally:
        connection.close()


def counted(port: int, sample: str) -> float:
    lines: str = ask_anew(port, "GET", "/metrics")
    return float(next(line for line in lines.splitlines() if line.startswith(sample)).split()[-1])


def test_workers_answer_as_one_are_renewed_without_a_failure_and_finish_at_the_end(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    with serving(tmp_path, redis_server) as (port, supervisor, log):
        flow = ask_anew(port, "GET", "/v1/flows")[0]
        versions = ask_anew(port, "GET", f"/v1/flows/{flow['id']}/versions")
        contact = {
            "conversationId": tmp_path.name,
            "contactId": "first",
            "conversationalFlowVersionId": versions[0]["versionId"],
            "channel": "chat",
        }
        ask_anew(port, "POST", "/v1/handle-new-contact", contact)
        prompts = (
            'flow_engine_http_requests_total{method="GET",route="/prompt/{conversation_id}",status="200"}'
        )
        for _ in range(8):
            ask_anew(port, "GET", f"/v1/prompt/{tmp_path.name}")
        deadline = time.monotonic() + WITHIN_S
        while (
            counted(port, prompts) != 8
        ):  # a worker that gets no turn of the machine counts as it did before
            assert time.monotonic() < deadline
        assert ask_anew(port, "GET", "/health/ready")["status"] == "ok"

        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        ask(kept, "GET", f"/v1/prompt/{tmp_path.name}")
        supervisor.send_signal(signal.SIGHUP)
        while kept.sock is not None:  # http.client drops it at `Connection: close`, and no request has failed
            ask(kept, "GET", f"/v1/prompt/{tmp_path.name}")
        wait_for(log, b'"worker_left"', supervisor, times=2)
        assert b"worker_ended" not in log.read_bytes()
        assert counted(port, prompts) > 9, "what the workers before had counted stays"

        body = orjson.dumps({**contact, "contactId": "second"})
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
            head = "POST /v1/handle-new-contact HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
            assert connection.recv(1_000).startswith(b"HTTP/1.1 100")
            supervisor.send_signal(signal.SIGTERM)
            connection.sendall(body[10:])
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        assert supervisor.wait(WITHIN_S) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)


def test_several_workers_need_a_redis_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOW_ENGINE_REDIS_URL", raising=False)
    refused = CliRunner().invoke(app, ["serve", "--workers", "2"])
    assert refused.exit_code == 2
    assert "FLOW_ENGINE_REDIS_URL" in refused.stderr
    assert CliRunner().invoke(app, ["serve", "--workers", "0"]).exit_code == 2


def test_a_port_that_somebody_serves_is_not_shared_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_ENGINE_REDIS_URL", "redis://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        refused = CliRunner().invoke(app, ["serve", "--workers", "2", "--port", str(port)])
    assert refused.exit_code == 2
    assert f"port {port}" in refused.stderr


def test_a_redis_that_is_away_is_told_with_its_setting_as_by_a_single_process(tmp_path: Path) -> None:  # F46
    command = (sys.executable, "-m", "service.cli", "serve", "--workers", "2", "--port", str(free_port()))
    refused = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(REDIS_URL="redis://127.0.0.1:1", DATA_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    where = "; it is looked for at FLOW_ENGINE_REDIS_URL"
    assert f"flow-engine: the conversation memory does not answer{where}\n" in refused.stderr

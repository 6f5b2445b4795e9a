"""`flow-engine worker` and `flow-engine jobs`, as an operator runs them (F41)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from memory.connection import connect
from memory.keys import DEAD_LETTER_TEXTS_KEY, DEAD_LETTERS_KEY, JOB_LEASES_KEY, JOBS_KEY
from memory.schedule import RedisJobSchedule
from service.cli import app
from tests.ports import free_port
from tests.redis_fixture import RedisServer

ROOT = Path(__file__).parents[2]
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def redis(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two jobs were given up, the one of `c2` later."""
    monkeypatch.setenv("FLOW_ENGINE_REDIS_URL", redis_server.url)
    keys = (JOBS_KEY, JOB_LEASES_KEY, DEAD_LETTERS_KEY, DEAD_LETTER_TEXTS_KEY)
    with redis_server.client() as client:
        client.delete(*keys)
        asyncio.run(bury(redis_server.url))
        yield client
        client.delete(*keys)


async def bury(url: str, *ids: str) -> None:
    memory = connect(url)
    schedule = RedisJobSchedule(memory.driver)
    for number, conversation_id in enumerate(ids or ("c1", "c2"), 3 if ids else 1):
        job = Job("conclude", ConversationRef("tenant", conversation_id), "call 1")
        await memory.driver.client.zadd(JOBS_KEY, {job.name: 0})
        (claim,) = await schedule.claim(T0, at_most=1, lease_s=15)
        await schedule.bury(claim, "the model refused", T0.replace(minute=number))
    await memory.close()


def run(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def listed() -> list[Any]:
    return [orjson.loads(line) for line in run("jobs", "dead", "--json").stdout.splitlines()]


def test_jobs_that_were_given_up_are_listed_the_latest_first(redis: Any) -> None:
    latest, _ = listed()
    assert latest["id"] in run("jobs", "dead", "--limit", "1").stdout
    del latest["id"]
    assert latest == {
        "kind": "conclude",
        "tenantId": "tenant",
        "conversationId": "c2",
        "subject": "call 1",
        "attempts": 1,
        "buriedAt": "2026-03-01T12:02:00+00:00",
        "reason": "the model refused",
    }


@pytest.mark.parametrize("conversation_id", ["[/b]", "[red]", "talk-" + 40 * "x" + "-end"])
def test_ids_are_shown_as_they_are_whatever_a_caller_chose(
    redis: Any, redis_server: RedisServer, conversation_id: str
) -> None:  # F41
    asyncio.run(bury(redis_server.url, conversation_id))
    done = run("jobs", "dead", "--limit", "1")
    assert done.exit_code == 0
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    assert "".join(cells[4].strip() for cells in rows) == conversation_id
    assert rows[0][1].strip() == listed()[0]["id"]


def test_one_is_replayed_by_its_id(redis: Any) -> None:
    latest, earlier = listed()
    assert run("jobs", "replay", latest["id"]).exit_code == 0
    assert [letter["id"] for letter in listed()] == [earlier["id"]]
    assert redis.zrange(JOBS_KEY, 0, -1) == [b"conclude:tenant:c2:call%201"]
    again = run("jobs", "replay", latest["id"])
    assert (again.exit_code, again.stderr) == (1, "0 due again\n")


def test_all_are_replayed(redis: Any) -> None:
    assert run("jobs", "replay", "--all").stderr == "2 due again\n"
    assert listed() == []
    assert redis.zcard(JOBS_KEY) == 2


@pytest.mark.parametrize("args", [("replay",), ("replay", "id", "--all")])
def test_what_to_replay_has_to_be_said(args: tuple[str, ...]) -> None:
    assert run("jobs", *args).exit_code == 2


@pytest.mark.parametrize("args", [("jobs", "dead"), ("jobs", "replay", "--all")])
def test_without_a_redis_there_is_nothing_to_work_on(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOW_ENGINE_REDIS_URL", raising=False)
    refused = run(*args)
    assert refused.exit_code == 2
    assert "set FLOW_ENGINE_REDIS_URL" in refused.stderr


@pytest.mark.long
def test_a_worker_that_could_not_work_does_not_start() -> None:
    """In a process of its own: starting sets up the logging of the whole process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE_")}
    refused = subprocess.run(
        (sys.executable, "-m", "service.cli", "worker"),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "set FLOW_ENGINE_REDIS_URL" in refused.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "no..name"])
def test_a_worker_whose_metrics_have_no_address_says_so(
    redis_server: RedisServer, tmp_path: Path, host: str
) -> None:  # F36
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE_")}
    environment |= {"FLOW_ENGINE_REDIS_URL": redis_server.url, "FLOW_ENGINE_DATA_DIR": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            (sys.executable, "-m", "service.cli", "worker", "--metrics-port", str(port)),
            cwd=ROOT,
            env={**environment, "FLOW_ENGINE_WORKER_METRICS_HOST": host},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"flow-engine: cannot listen on {host!r} port {port}: ")


MAILBOX = """mailbox:
  name: support
  imap: {host: 127.0.0.1, port: 1, tls: none, user: me@example.org, password_env: SECRET}
"""


@pytest.mark.parametrize("command", ["serve", "worker", "chat", "mail"])
def test_a_single_process_ends_in_order_at_a_hangup(
    redis_server: RedisServer, tmp_path: Path, command: str
) -> None:  # F41, F42
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE_")}
    environment |= {"FLOW_ENGINE_REDIS_URL": redis_server.url, "FLOW_ENGINE_DATA_DIR": str(tmp_path)}
    (tmp_path / "mail.yaml").write_text(MAILBOX)
    options = {
        "serve": ("--port", str(free_port())),
        "worker": (),
        "chat": ("serve", "--port", "0"),
        "mail": ("serve", "--config", str(tmp_path / "mail.yaml")),
    }[command]
    # As from a terminal: whoever runs the tests may be out of the reach of hang-ups, as by nohup.
    from_a_terminal = ("env", "--default-signal=HUP", sys.executable, "-m", "service.cli")
    with subprocess.Popen(
        (*from_a_terminal, command, *options),
        cwd=ROOT,
        env={**environment, "SECRET": "word"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            assert b"Ctrl-C stops it" in process.stderr.readline()
            time.sleep(0.2)  # until it listens
            process.send_signal(signal.SIGHUP)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_service_that_was_started_without_a_stream_ends_in_order(tmp_path: Path, closed: str) -> None:
    # F42: what was opened in its place was aborted for as the loop closed it
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE_")}
    command = (sys.executable, "-m", "service.cli", "serve", "--port", str(free_port()))
    with subprocess.Popen(
        ("sh", "-c", f'exec "$@" {closed}', "sh", *command),
        cwd=ROOT,
        env={**environment, "FLOW_ENGINE_DATA_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            assert b"Ctrl-C stops it" in process.stderr.readline()
            time.sleep(0.2)  # until it listens
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.long
def test_serve_announces_nothing_on_a_port_that_is_in_use(tmp_path: Path) -> None:  # F46
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOW_ENGINE_")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = subprocess.run(
            (sys.executable, "-m", "service.cli", "serve", "--port", str(taken.getsockname()[1])),
            cwd=ROOT,
            env={**environment, "FLOW_ENGINE_DATA_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert refused.returncode == 2
    assert "flow-engine: cannot listen on '127.0.0.1'" in refused.stderr
    assert "Flow Engine on" not in refused.stderr
    assert "background_work_stopped" not in refused.stdout + refused.stderr

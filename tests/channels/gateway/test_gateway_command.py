"""`flow-engine gateway` as operators run it: a process of its own, and the commands beside it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from typer.testing import CliRunner

from channels.gateway.database import FILE_NAME
from service.cli import app
from tests.adapters.models.exact_server import ExactServer
from tests.channels.gateway.gateway_world import either
from tests.service_process import running_service

RUNNER = CliRunner()


def ran(*arguments: str) -> Any:
    """What a command prints with `--json`."""
    shown = RUNNER.invoke(app, ["gateway", *arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


@contextmanager
def model_server() -> Iterator[ExactServer]:
    """In a thread, since the commands have event loops of their own."""
    server, loop, ready, stop = (
        ExactServer(either()),
        asyncio.new_event_loop(),
        threading.Event(),
        asyncio.Event(),
    )

    async def serve() -> None:
        async with server.running():
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_it_serves_and_its_cache_is_looked_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # W7, W9, F43
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
    config, keys = tmp_path / "gateway.toml", tmp_path / "keys.json"
    keys.write_bytes(
        orjson.dumps({"keys": [{"key": "a-key-of-somebody", "tenant": "t", "scopes": ["gateway"]}]})
    )
    with model_server() as server:
        config.write_text(
            f'[[backends]]\nname = "b"\nkind = "vllm"\nurl = "{server.origin}/v1"\nmodels = ["m"]\n'
            'aliases = { small = "m" }\n'
        )
        with (
            running_service(
                tmp_path,
                "gateway",
                "serve",
                FLOW_ENGINE_GATEWAY_CONFIG=str(config),
                FLOW_ENGINE_API_KEYS_FILE=str(keys),
            ) as base,
            httpx2.Client(base_url=base, headers={"Authorization": "Bearer a-key-of-somebody"}) as client,
        ):

            def outcome() -> str:
                body = {"model": "small", "temperature": 0, "messages": [{"role": "user", "content": "Hi"}]}
                reply = client.post("/v1/chat/completions", json=body)
                assert reply.status_code == 200
                return reply.headers["x-cache"]

            assert [outcome(), outcome()] == ["miss", "hit-l1"]
            assert httpx2.get(f"{base}/v1/models").status_code == 401
            deadline = time.monotonic() + 10
            while ran("cache", "stats")["hits"] < 1 and time.monotonic() < deadline:
                time.sleep(0.1)
            stats = ran("cache", "stats")
            assert (stats["entries"], stats["hits"], stats["models"]) == (1, 1, {"m": 1})
            [usage] = ran("usage")["usage"]
            assert (usage["tenant"], usage["model"], usage["calls"]) == ("t", "m", 1)
            assert ran("cache", "clear") == {"cleared": 1}
            while (found := outcome()) != "miss" and time.monotonic() < deadline:
                time.sleep(0.1)
            assert (found, len(server.requests)) == ("miss", 2)


@pytest.mark.parametrize(
    ("more", "named"),
    [(["--host", "0.0.0.0"], "FLOW_ENGINE_API_KEYS_FILE"), (["--config", "/nowhere"], "/nowhere: No such")],
)
def test_it_refuses_to_start_and_says_why(
    more: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # F43
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
    config = tmp_path / "g.toml"
    config.write_text('[[backends]]\nname = "b"\nkind = "ollama"\nurl = "http://h"\nmodels = ["m"]\n')
    shown = RUNNER.invoke(app, ["gateway", "serve", "--port", "0", "--config", str(config), *more])
    assert (shown.exit_code, named in shown.output) == (2, True)
    without = RUNNER.invoke(app, ["gateway", "serve", "--port", "0"])
    assert (without.exit_code, "--config or FLOW_ENGINE_GATEWAY_CONFIG" in without.output) == (2, True)


@pytest.mark.parametrize("command", [["usage"], ["cache", "stats"], ["cache", "clear"]])
def test_a_file_that_is_no_database_is_told_in_a_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(b"no database, but long enough to be read as one" * 100)
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    shown = RUNNER.invoke(app, ["gateway", *command])
    assert (shown.exit_code, shown.output.count("\n")) == (2, 1)
    assert shown.output.endswith("gateway.db: file is not a database\n")
    while any(
        "aiosqlite" in str(each) or "_connection_worker" in each.name for each in threading.enumerate()
    ):
        time.sleep(0.01)  # the driver's own, where it has been begun
    assert not failed

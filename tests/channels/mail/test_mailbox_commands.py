"""`flow-engine mail serve`, `runs`, `approve` and `reject` as their users start them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from adapters.models.scripted import Says
from service.cli import app
from tests.channels.mail.dovecot import Dovecot
from tests.channels.mail.test_serving import replying
from tests.channels.mail.world import World, config, ended, environment, mail


@pytest.fixture
def world(
    dovecot: Dovecot, new_user: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    environment(monkeypatch)
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
    return World(dovecot, new_user(), tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["mail", *arguments])


def filled(world: World, *, waits: bool) -> str:
    """One mail worked on; its run."""
    document = config(world.dovecot.port, world.user)
    if waits:
        document["agent"]["profiles"]["pharmacy"]["approval"] = {"send_reply": "prompt"}
    path = world.write(document)

    async def work() -> str:
        async with world.serving(path, replying if waits else [Says("fine")]) as service:
            world.dovecot.deliver(world.user, mail())
            return str((await ended(service, 1))[0]["id"])

    return asyncio.run(work())


def test_runs_are_listed_and_shown(world: World) -> None:  # M14
    run_id = filled(world, waits=True)
    (row,) = orjson.loads(run("runs", "--json").stdout)
    assert {"id", "mailbox", "message_id", "rule", "route", "profile", "job", "status"} <= row.keys()
    assert {"final_message", "iterations", "tool_calls_log", "error", "conversation_id"} <= row.keys()
    assert (row["id"], row["status"], row["job"]) == (run_id, "waiting", "agent_process")
    assert orjson.loads(run("runs", "--status", "completed", "--json").stdout) == []
    assert run("runs", "--status", "stuck").exit_code == 2
    assert orjson.loads(run("runs", "--limit", "1", "--json").stdout) == [row]
    assert orjson.loads(run("runs", "--after", run_id, "--json").stdout) == []
    for wrong in (("--limit", "0"), ("--after", "nothing")):
        refused = run("runs", *wrong)
        assert (refused.exit_code, refused.stdout) == (2, "")
    shown = orjson.loads(run("runs", "show", run_id, "--json").stdout)
    assert shown["waiting"][0]["tool"] == "send_reply"
    assert shown["llm_calls"][0]["call_type"] == "agent"
    assert shown["email_events"][0]["event"] == "received"
    assert run_id in run("runs").stdout
    assert "waiting" in run("runs", "show", run_id).stdout
    unknown = run("runs", "show", "nothing", "--json")
    assert (unknown.exit_code, unknown.stdout) == (2, "")


@pytest.mark.parametrize("command", ["approve", "reject"])
def test_a_run_is_decided_once(world: World, command: str) -> None:  # M11
    run_id = filled(world, waits=True)
    assert run(command, run_id).exit_code == 0
    assert orjson.loads(run("runs", "--json").stdout)[0]["status"] == "queued"
    for again in ("approve", "reject"):
        assert run(again, run_id).exit_code == 1
    assert run(command, "nothing").exit_code == 2


def test_a_run_that_has_ended_is_not_decided(world: World) -> None:  # M11
    run_id = filled(world, waits=False)
    refused = run("approve", run_id)
    assert refused.exit_code == 1
    assert "completed" in refused.stderr


def test_serve_refuses_a_config_with_mistakes_with_all_of_them(world: World) -> None:  # M3
    document = config(world.dovecot.port, world.user)
    document["routing"]["rules"][0]["match"] = {"subject": "x"}
    document["agent"]["profiles"]["pharmacy"]["tools"].append("nobody_registers_it")
    refused = run("serve", "--config", str(world.write(document)))
    assert refused.exit_code == 2
    assert "/routing/rules/0/match/subject" in refused.stderr
    assert "/agent/profiles/pharmacy/tools/4" in refused.stderr

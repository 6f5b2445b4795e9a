"""A mail in a flow of the engine, and its runs over REST: engine, mailbox and mail agent are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.models.scripted import CallsTools, Says
from channels.engine_client.client import Contact, EngineClient, FlowChoice, NewContact, engine_http
from flow_engine.ports.models import ToolCall
from tests.channels.mail.dovecot import Dovecot
from tests.channels.mail.smtp_server import SmtpServer
from tests.channels.mail.test_serving import replying
from tests.channels.mail.world import World, config, ended, environment, mail, until
from tests.service_process import running_service

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The engine's address and its data directory, which the mail agent shares."""
    folder = tmp_path_factory.mktemp("engine")
    with running_service(folder) as url:
        yield url, folder


@pytest.fixture
def world(
    engine: tuple[str, Path],
    dovecot: Dovecot,
    new_user: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    environment(monkeypatch)
    return World(dovecot, new_user(), engine[1])


def in_a_flow(world: World, engine_url: str, **changes: Any) -> dict[str, Any]:
    document = config(world.dovecot.port, world.user, name=world.user, **changes)
    flow = {"engine_url": engine_url, "flow_id": "claim", "tag": "prod"}
    document["agent"]["profiles"]["pharmacy"]["flow"] = flow
    return document


async def test_escalate_moves_the_threads_conversation_to_a_human_task(  # M11
    world: World, engine: tuple[str, Path]
) -> None:
    path = world.write(in_a_flow(world, engine[0]))
    escalates = [
        CallsTools([ToolCall("c1", "escalate", {"reason": "wants a person"})]),
        Says("A person will answer."),
    ]
    async with world.serving(path, escalates) as service:
        world.dovecot.deliver(world.user, mail(1))

        async def first() -> bool:
            return any(
                row["mailbox"] == world.user and row["status"] == "completed"
                for row in await service.runs.rows("default")
            )

        await until(first)
        row = next(row for row in await service.runs.rows("default") if row["mailbox"] == world.user)
    assert row["tool_calls_log"][0]["result"] == {"status": "escalated", "task": "perito"}  # type: ignore[index,call-overload]
    assert row["conversation_id"]
    http = engine_http(engine[0])
    contact = Contact(str(row["conversation_id"]), str(row["id"]))
    choice = FlowChoice(flow_id="claim", tag="prod")
    data = await EngineClient(http).new_contact(NewContact(contact, choice, "mail"))
    await http.aclose()
    assert (data.task_name, data.task_type, data.channel) == ("perito", "HUM", "mail")
    assert world.dovecot.flags(world.user)[0] - {"\\Recent"} == set(), "the flow has it, not a flag"

    async with world.serving(path, [Says("never asked for")]) as service:
        answer = mail(2, headers=["References: <m1@example.com>", "In-Reply-To: <m1@example.com>"])
        world.dovecot.deliver(world.user, answer)

        async def second() -> list[Any]:
            return [
                row
                for row in await service.runs.rows("default")
                if row["message_id"] == "<m2@example.com>" and row["status"] == "completed"
            ]

        await until(second)
        (later,) = await second()
        shown = await service.runs.row("default", str(later["id"]))
    assert later["conversation_id"] == row["conversation_id"], "one conversation for the thread"
    assert shown["llm_calls"] == [], "with a person at work the agent says nothing"


async def test_runs_are_listed_shown_and_decided_over_rest(  # M14
    world: World, engine: tuple[str, Path], smtp: SmtpServer
) -> None:
    document = config(world.dovecot.port, world.user, smtp.port, name=world.user)
    document["agent"]["profiles"]["pharmacy"]["approval"] = {"send_reply": "prompt"}
    path = world.write(document)
    async with (
        world.serving(path, replying) as service,
        httpx.AsyncClient(base_url=engine[0]) as http,
    ):
        world.dovecot.deliver(world.user, mail("rest"))

        async def waiting() -> list[Any]:
            listed = await http.get("/v1/agent-runs", params={"status": "waiting"})
            return listed.json()

        await until(waiting)
        (row,) = await waiting()
        shown = (await http.get(f"/v1/agent-runs/{row['id']}")).json()
        assert {name: shown[name] for name in row} == row
        assert [call["call_type"] for call in shown["llm_calls"]] == ["agent"]
        assert shown["waiting"][0]["tool"] == "send_reply"
        assert (await http.get("/v1/agent-runs", params={"status": "stuck"})).status_code == 422
        assert (await http.get("/v1/agent-runs/nothing")).status_code == 404
        approved = await http.post(f"/v1/agent-runs/{row['id']}/approve")
        assert (approved.status_code, approved.json()["status"]) == (200, "queued")
        again = await http.post(f"/v1/agent-runs/{row['id']}/reject")
        assert (again.status_code, again.json()["code"]) == (409, "run_not_waiting")
        await until(lambda: smtp.sent, within_s=5.0)
        rows = await ended(service, 1)
        assert {each["id"] for each in (await http.get("/v1/agent-runs")).json()} >= {
            each["id"] for each in rows
        }

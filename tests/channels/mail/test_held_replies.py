"""A reply in a task with approval waits for a person at the engine, and is sent once. Mail servers and engine
are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.models.scripted import CallsTools, Says, Step
from channels.mail.runs import RunTables
from channels.mail.working import GONE
from flow_engine.errors import RetryLater
from flow_engine.ports.models import LLMRequest, ToolCall
from service.mail_serve import MailService
from tests.channels.engine_client.gate import Moment, gate_to
from tests.channels.mail.dovecot import Dovecot
from tests.channels.mail.smtp_server import SmtpServer
from tests.channels.mail.world import World, config, ended, environment, mail, until
from tests.flow_engine.documents.samples import aio_task, hum_task, minimal_version
from tests.service_process import running_service

pytestmark = pytest.mark.anyio

DRAFT, BETTER = "We refund 20 €.", "We refund 25 €."


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("engine")) as url:
        yield url


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine_url, timeout=30) as http:
        yield http


@pytest.fixture
def world(
    dovecot: Dovecot, new_user: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    environment(monkeypatch)
    return World(dovecot, new_user(), tmp_path)


async def agent(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient, timeout: float = 120, **approval: str
) -> Path:
    """The config of an agent whose flow has one task, with approval; `approval` is the profile's own."""
    approving = {"type": "AIS", "approval": True, "approvalTimeout": timeout, "connectedTasks": ["after"]}
    tasks = [hum_task("answers", **approving), aio_task("after")]
    channels = {"channels": ["mail"], "mandatoryChannels": []}
    document = minimal_version(tasks=tasks, firstTask="answers", **channels)
    del document["conversationalFlowId"]
    flow = {"name": "Desk", "campaignId": "c", "updatedBy": "ada"}
    flow_id = (await engine.post("/v1/flows", json=flow)).json()["id"]
    saved = await engine.post(f"/v1/flows/{flow_id}/versions?tag=prod", json=document)
    assert saved.status_code == 201, saved.text
    settings = config(world.dovecot.port, world.user, smtp.port, name=world.user)
    declared = {"engine_url": str(engine.base_url), "flow_id": flow_id, "tag": "prod"}
    settings["agent"]["profiles"]["pharmacy"] |= {"flow": declared, "approval": approval}
    return world.write(settings)


def replying(request: LLMRequest) -> Step:
    """One reply to the sender, another where that is refused, then a word to end with."""
    results = [message.content for message in request.messages if message.role == "tool"]
    if results and "too little" not in results[-1]:
        return Says("Answered.")
    body = BETTER if results else DRAFT
    arguments = {"to": "jana@example.com", "subject": "Re: Refund", "body": body}
    return CallsTools([ToolCall(f"c{len(results)}", "send_reply", arguments)])


async def waiting(service: MailService) -> Mapping[str, Any]:
    """The run that waits, as a person sees it."""

    async def waits() -> bool:
        return [row["status"] for row in await service.runs.rows("default")] == ["waiting"]

    await until(waits)
    (row,) = await service.runs.rows("default")
    return await service.runs.row("default", str(row["id"]))


async def decide(engine: httpx.AsyncClient, run: Mapping[str, Any], outcome: str, **body: Any) -> None:
    contact = {"conversationId": run["conversation_id"], "contactId": run["id"]}
    answer = await engine.post("/v1/handle-human-task", json={**contact, "outcome": outcome, **body})
    assert answer.status_code == 200, answer.text


async def completed(service: MailService) -> Mapping[str, Any]:
    async def has() -> bool:
        return [row["status"] for row in await service.runs.rows("default")] == ["completed"]

    await until(has)
    (row,) = await ended(service, 1)
    return row


async def asked(engine: httpx.AsyncClient, run: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """What was asked of the human part, and with which text."""
    journal = (await engine.get(f"/v1/conversations/{run['conversation_id']}/journal")).json()["entries"]
    inputs = [each["input"] for each in journal if each["input"]["op"] == "handle-human-task"]
    return [(each["outcome"], each.get("text")) for each in inputs]


async def test_the_run_waits_with_the_reply_and_sends_what_a_person_made_of_it_after_a_restart(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient
) -> None:  # M11
    path = await agent(world, smtp, engine)
    async with world.serving(path, replying) as service:
        world.dovecot.deliver(world.user, mail())
        run = await waiting(service)
        (call,) = run["waiting"]
        assert (call["tool"], call["arguments"]["body"]) == ("send_reply", DRAFT)
        assert run["tool_calls_log"] == []
        page = (await engine.get(f"/v1/conversations/{run['conversation_id']}")).json()
        assert page["status"] == "active"
    assert (smtp.sent, world.drafts()) == ([], [])
    await decide(engine, run, "edited", text=BETTER)
    async with world.serving(path, replying) as service:
        row = await completed(service)
        (line,) = row["tool_calls_log"]
        assert line["result"]["status"] == "sent"
    (sent,) = world.sent()
    assert (BETTER in sent.text, DRAFT in sent.text, len(smtp.sent)) == (True, False, 1)
    assert await asked(engine, run) == [("waiting", DRAFT), ("edited", BETTER)]


async def test_a_rejected_reply_is_the_models_to_write_again(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient
) -> None:  # M11
    async with world.serving(await agent(world, smtp, engine), replying) as service:
        world.dovecot.deliver(world.user, mail())
        run = await waiting(service)
        await decide(engine, run, "rejected", reason="too little")

        async def writes_another() -> bool:
            return ("waiting", BETTER) in await asked(engine, run)

        await until(writes_another)
        again = await waiting(service)
        assert [call["arguments"]["body"] for call in again["waiting"]] == [BETTER]
        assert smtp.sent == []
        await decide(engine, run, "approved")
        row = await completed(service)
    first, second = row["tool_calls_log"]
    assert first["result"]["error"].endswith("too little")
    assert (second["result"]["status"], len(smtp.sent)) == ("sent", 1)


async def test_a_reply_that_nobody_approves_in_time_is_left_as_a_draft(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient
) -> None:  # M11
    async with world.serving(await agent(world, smtp, engine, timeout=0.5), replying) as service:
        world.dovecot.deliver(world.user, mail())
        row = await completed(service)
        (line,) = row["tool_calls_log"]
        assert line["result"]["status"] == "drafted"
        assert line["result"]["reason"] == "nobody has approved it in time"
    assert (smtp.sent, len(world.drafts())) == ([], 1)


@pytest.mark.parametrize("decision", [pytest.param("approved", marks=pytest.mark.long), "rejected"])
async def test_the_runs_own_decision_is_the_engines_too(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient, decision: Any
) -> None:  # M11
    async with world.serving(await agent(world, smtp, engine), replying) as service:
        world.dovecot.deliver(world.user, mail())
        run = await waiting(service)
        await service.runs.decide("default", str(run["id"]), decision)
        await completed(service)
    assert await asked(engine, run) == [("waiting", DRAFT), (decision, None)]
    assert len(smtp.sent) == (decision == "approved")


@pytest.mark.long
async def test_a_profile_that_asks_before_each_reply_is_asked_first(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient
) -> None:  # M11
    path = await agent(world, smtp, engine, send_reply="prompt")
    async with world.serving(path, replying) as service:
        world.dovecot.deliver(world.user, mail())
        run = await waiting(service)
        assert await asked(engine, run) == []
        await service.runs.decide("default", str(run["id"]), "approved")

        async def is_read() -> bool:
            return bool(await asked(engine, run))

        await until(is_read)
        await waiting(service)
        await decide(engine, run, "approved")
        await completed(service)
    assert len(smtp.sent) == 1


async def test_a_person_who_takes_over_leaves_the_agent_nothing_to_send(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient
) -> None:  # M11
    async with world.serving(await agent(world, smtp, engine), replying) as service:
        world.dovecot.deliver(world.user, mail())
        run = await waiting(service)
        await decide(engine, run, "taken_over")
        await completed(service)
        page = (await engine.get(f"/v1/conversations/{run['conversation_id']}")).json()
        assert page["status"] == "active", "the person has the contact"
    assert (smtp.sent, world.drafts()) == ([], [])


@pytest.mark.parametrize("outcome", ["approved", "taken_over"])
async def test_a_mail_that_is_deleted_while_its_reply_waits_leaves_no_live_conversation_but_a_persons(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient, outcome: str
) -> None:  # M1, F30
    async with world.serving(await agent(world, smtp, engine), replying) as service:
        world.dovecot.deliver(world.user, mail())
        run = await waiting(service)
        with world.dovecot.client(world.user) as client:
            client.select_folder("INBOX")
            client.delete_messages([1])
            client.expunge()
        await decide(engine, run, outcome)

        async def has_ended() -> bool:
            return [row["error"] for row in await service.runs.rows("default")] == [GONE]

        await until(has_ended)
        page = (await engine.get(f"/v1/conversations/{run['conversation_id']}")).json()
    assert page["status"] == ("closed" if outcome == "approved" else "active")
    assert smtp.sent == []


async def test_a_run_that_is_given_up_leaves_no_live_conversation(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:  # M11, F30
    def broken(request: LLMRequest) -> Step:
        raise ArithmeticError

    monkeypatch.setenv("FLOW_ENGINE_JOB_ATTEMPTS", "1")
    async with world.serving(await agent(world, smtp, engine), broken) as service:
        world.dovecot.deliver(world.user, mail())
        (run,) = await ended(service, 1)
    assert (run["status"], run["error"]) == ("error", "ArithmeticError")
    page = (await engine.get(f"/v1/conversations/{run['conversation_id']}")).json()
    assert page["status"] == "closed"


async def statuses(service: MailService) -> list[str]:
    """Of the runs, by the numbers of their mails."""
    rows = sorted(await service.runs.rows("default"), key=lambda row: str(row["message_id"]))
    return [str(row["status"]) for row in rows]


async def test_a_later_mail_of_the_thread_takes_the_place_of_a_reply_that_waits(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient
) -> None:  # M11
    async with world.serving(await agent(world, smtp, engine), replying) as service:
        world.dovecot.deliver(world.user, mail())
        first = await waiting(service)
        world.dovecot.deliver(world.user, mail(2, headers=["References: <m1@example.com>"]))

        async def only_the_second_waits() -> bool:
            return await statuses(service) == ["completed", "waiting"]

        await until(only_the_second_waits)
        second = next(row for row in await service.runs.rows("default") if row["id"] != first["id"])
        await decide(engine, second, "approved")

        async def both_ended() -> bool:
            return await statuses(service) == ["completed", "completed"]

        await until(both_ended)
    assert len(smtp.sent) == 1


class Away:
    """The store of a process that is gone: nothing of it arrives any more."""

    def __getattr__(self, name: str) -> Any:
        raise RetryLater("flow_store_unavailable", "away")


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.long), "after"])
async def test_a_process_killed_between_keeping_a_reply_and_the_engines_answer_loses_and_doubles_nothing(
    world: World, smtp: SmtpServer, engine: httpx.AsyncClient, moment: Moment
) -> None:  # M11
    path = await agent(world, smtp, engine)
    config_then, engine_url = path.read_text(), str(engine.base_url)
    async with AsyncExitStack() as way:
        gate = await way.enter_async_context(gate_to(engine_url, b"/v1/handle-human-task", moment))
        path.write_text(config_then.replace(engine_url, gate.url))
        async with world.serving(path, replying) as service:
            world.dovecot.deliver(world.user, mail())
            await asyncio.wait_for(gate.reached.wait(), 30)
            away: Any = Away()
            service.runs.tables = RunTables(away, away, away)
            await way.aclose()
    path.write_text(config_then)
    async with world.serving(path, replying) as service:
        run = await waiting(service)
        assert (smtp.sent, world.drafts()) == ([], [])
        assert await asked(engine, run) == [("waiting", DRAFT)]
        await decide(engine, run, "approved")
        row = await completed(service)
        assert [line["result"]["status"] for line in row["tool_calls_log"]] == ["sent"]
    (sent,) = world.sent()
    assert (DRAFT in sent.text, len(smtp.sent)) == (True, 1)

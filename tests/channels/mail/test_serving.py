"""Mailboxes that work: taken in, worked on, decided on, and gone on with (M1, M2, M11, M14, M15)."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import structlog

from adapters.models.scripted import Answers, CallsTools, Fails, Says, Stalls, Step
from channels.mail import intake
from channels.mail.routing import judge
from channels.mail.working import GONE
from flow_engine.ports.models import LLMRequest, ToolCall
from tests.channels.mail.dovecot import Dovecot
from tests.channels.mail.smtp_server import SmtpServer
from tests.channels.mail.world import World, config, ended, environment, mail, until
from tests.ports import free_port
from tests.proof.link import Link

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(
    dovecot: Dovecot, new_user: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    environment(monkeypatch)
    return World(dovecot, new_user(), tmp_path)


def replying(request: LLMRequest) -> Step:
    """One reply to the sender, then a word to end with."""
    if request.messages[-1].role == "tool":
        return Says("Answered.")
    arguments = {"to": "jana@example.com", "subject": "Re: Ibuprofen", "body": "Yes, we have."}
    return CallsTools([ToolCall("c1", "send_reply", arguments)])


def keywords(flags: set[str]) -> set[str]:
    return {flag for flag in flags if not flag.startswith("\\")}


async def test_a_reply_is_sent_in_the_thread_and_lies_in_sent(world: World, smtp: SmtpServer) -> None:  # M11
    path = world.write(config(world.dovecot.port, world.user, smtp.port))
    async with world.serving(path, replying) as service:
        world.dovecot.deliver(world.user, mail())
        (row,) = await ended(service, 1)
        shown = await service.runs.row("default", str(row["id"]))
    (sent,) = world.sent()
    assert smtp.contents == world.dovecot.messages(world.user, "Sent")
    assert smtp.sent[0].rcpt_tos == ["jana@example.com"]
    assert sent.in_reply_to == ("<m1@example.com>",)
    assert sent.references == ("<m1@example.com>",)
    assert sent.values("Auto-Submitted") == ("auto-replied",)
    assert sent.content_type == "multipart/alternative"
    assert (row["status"], row["final_message"], row["iterations"]) == ("completed", "Answered.", 2)
    assert (row["mailbox"], row["message_id"], row["rule"]) == ("pharmacy", "<m1@example.com>", "everything")
    assert (row["route"], row["profile"], row["job"]) == ("agent", "pharmacy", "agent_process")
    (line,) = row["tool_calls_log"]  # type: ignore[misc]
    assert (line["tool"], line["result"]["status"], line["iteration"]) == ("send_reply", "sent", 1)
    assert [call["call_type"] for call in shown["llm_calls"]] == ["agent", "agent"]  # type: ignore[union-attr,index,call-overload]
    assert "\\Seen" not in world.dovecot.flags(world.user)[0]
    assert world.select("SELECT status, rule, route, iterations FROM agent_runs") == [
        ("completed", "everything", "agent", 2)
    ]
    assert world.select("SELECT count(*), call_type FROM llm_calls, agent_runs r WHERE run_id = r.id") == [
        (2, "agent")
    ]
    assert ("<m1@example.com>", "everything", "received") in world.select(
        "SELECT message_id, rule, event FROM email_events"
    )


async def test_what_was_there_before_the_first_start_is_never_answered(world: World) -> None:  # M1
    path = world.write(config(world.dovecot.port, world.user))
    world.dovecot.deliver(world.user, mail("old"))
    async with world.serving(path, [Says("fine")]) as service:
        world.dovecot.deliver(world.user, mail("new"))
        await ended(service, 1)
    world.dovecot.deliver(world.user, mail("away"))
    async with world.serving(path, [Says("fine")]) as service:
        rows = await ended(service, 2)
        assert [row["message_id"] for row in rows] == ["<mnew@example.com>", "<maway@example.com>"]
    async with world.serving(path, [Says("fine")], since=date(2020, 1, 1)) as service:
        rows = await ended(service, 3)
        assert rows[2]["message_id"] == "<mold@example.com>"


async def test_the_same_mail_again_is_no_second_run_and_another_content_is(world: World) -> None:  # M1
    path = world.write(config(world.dovecot.port, world.user))
    async with world.serving(path, [Says("fine")]) as service:
        world.dovecot.deliver(world.user, mail(), mail(), mail(body="Another question"))
        await ended(service, 2)
        world.dovecot.deliver(world.user, mail("last"))
        rows = await ended(service, 3)
    assert [row["message_id"] for row in rows] == ["<m1@example.com>"] * 2 + ["<mlast@example.com>"]
    assert len({row["id"] for row in rows}) == 3


async def test_a_mail_that_brings_out_a_bug_ends_its_own_run_and_nothing_else(  # M1
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judging(settings: Any, box: Any, found: Any) -> Any:
        if found.subject.startswith("Odd"):
            raise ZeroDivisionError
        return judge(settings, box, found)

    monkeypatch.setattr(intake, "judge", judging)
    path = world.write(config(world.dovecot.port, world.user))
    async with world.serving(path, [Says("fine")]) as service:
        with structlog.testing.capture_logs() as logs:
            world.dovecot.deliver(world.user, mail("odd", subject="Odd"), mail(1))
            rows = await ended(service, 2)
        shown = await service.runs.row("default", str(rows[0]["id"]))
    assert [row["status"] for row in rows] == ["error", "completed"]
    assert rows[0]["error"] == "the mail could not be read: ZeroDivisionError"
    assert shown["ended_at"] is not None
    (told,) = [line for line in logs if line["event"] == "mail_not_read"]
    assert (told["uid"], type(told["exc_info"])) == (1, ZeroDivisionError)


@asynccontextmanager
async def refusing(port: int, second: re.Pattern[bytes]) -> AsyncGenerator[int]:
    """The port of a way to the IMAP server at `port` that refuses commands in which `second` is found."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)

        async def answers() -> None:
            while data := await from_server.read(65_536):
                writer.write(data)
            writer.close()

        answering = asyncio.create_task(answers())
        while line := await reader.readline():
            if second.search(line):
                writer.write(line.split()[0] + b" NO [SERVERBUG] it cannot be converted\r\n")
            else:
                to_server.write(line)
        to_server.close()
        await answering

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_mail_that_the_server_does_not_give_out_keeps_no_other_waiting(world: World) -> None:  # M1
    async with refusing(world.dovecot.port, re.compile(rb"FETCH \S*\b2\b\S* .*BODY")) as port:
        path = world.write(config(port, world.user))
        async with world.serving(path, lambda request: Says("Nothing to do.")) as service:
            for number in range(1, 4):
                world.dovecot.deliver(world.user, mail(number))
            rows = {row["message_id"]: row for row in await ended(service, 3)}
            world.dovecot.deliver(world.user, mail(4))
            assert len(await ended(service, 4)) == 4
    statuses = sorted((str(row["status"]), id_.startswith("<m")) for id_, row in rows.items())
    assert statuses == [("completed", True), ("completed", True), ("error", False)]


async def test_a_server_that_gives_out_nothing_ends_no_run(world: World) -> None:  # M1
    async with refusing(world.dovecot.port, re.compile(rb"FETCH .*BODY.*<")) as port:
        path = world.write(config(port, world.user))
        async with world.serving(path, lambda request: Says("Nothing to do.")) as service:
            for number in range(1, 3):
                world.dovecot.deliver(world.user, mail(number))
            await until(lambda: "SERVERBUG" in str(service.intakes[0].problem))
            assert await ended(service, 0) == []


async def test_another_uidvalidity_answers_nothing_twice_and_loses_nothing(world: World) -> None:  # M1
    path = world.write(config(world.dovecot.port, world.user))
    world.dovecot.deliver(world.user, mail("old"))
    async with world.serving(path, [Says("fine")]) as service:
        world.dovecot.deliver(world.user, mail(1))
        await ended(service, 1)
    world.dovecot.deliver(world.user, mail(2))
    world.dovecot.renumber(world.user)
    async with world.serving(path, [Says("fine")]) as service:
        world.dovecot.deliver(world.user, mail(3))
        rows = await ended(service, 3)
        await asyncio.sleep(0.3)
        assert len(await service.runs.rows("default")) == 3
    assert [row["message_id"] for row in rows] == [f"<m{n}@example.com>" for n in (1, 2, 3)]


async def test_another_bound_of_what_is_read_is_no_other_mail(world: World) -> None:  # M1
    document = config(world.dovecot.port, world.user)
    since, body = date(2020, 1, 1), "Have you any? " * 2_000
    for most_mb in (0.01, 0.02, 25):
        document["limits"]["max_message_mb"] = most_mb
        async with world.serving(world.write(document), [Says("fine")], since=since) as service:
            if most_mb == 0.01:
                world.dovecot.deliver(world.user, mail(body=body))
            rows = await ended(service, 1)
            await until(lambda looks=service.intakes[0]: looks._since is None)
            assert len(await service.runs.rows("default")) == len(rows) == 1


async def test_another_account_under_the_same_name_begins_anew(  # M1
    world: World, new_user: Callable[[], str]
) -> None:
    async with world.serving(world.write(config(world.dovecot.port, world.user)), [Says("fine")]):
        pass
    other = new_user()
    world.dovecot.deliver(other, mail("old"))
    async with world.serving(world.write(config(world.dovecot.port, other)), [Says("fine")]) as service:
        world.dovecot.deliver(other, mail("new"))
        rows = await ended(service, 1)
    assert [row["message_id"] for row in rows] == ["<mnew@example.com>"]


async def test_cut_connections_and_a_server_without_idle_lose_nothing(  # M1
    world: World, dovecot_without_idle: Dovecot, smtp: SmtpServer, new_user: Callable[[], str], tmp_path: Path
) -> None:
    async with Link(free_port(), world.dovecot.port) as link:
        path = world.write(config(link.port, world.user, smtp.port))
        async with world.serving(path, replying) as service:
            for number in range(4):
                world.dovecot.deliver(world.user, mail(number))
                link.cut_all()
            rows = await ended(service, 4)
    assert {row["status"] for row in rows} == {"completed"}
    assert len(world.sent()) == len(smtp.sent) == 4
    without = World(dovecot_without_idle, new_user(), tmp_path / "without")
    without.folder.mkdir()
    changed = config(dovecot_without_idle.port, without.user)
    changed["mailbox"]["imap"]["poll_s"] = 0.2
    async with without.serving(without.write(changed), [Says("fine")]) as service:
        dovecot_without_idle.deliver(without.user, mail())
        await ended(service, 1)


async def test_the_pipeline_labels_and_drafts_and_never_sends(world: World, smtp: SmtpServer) -> None:  # M2
    labels = [{"name": "order", "description": "somebody orders"}, {"name": "other"}]
    document = config(world.dovecot.port, world.user, smtp.port, pipeline={"labels": labels})
    document["routing"] = {"rules": []}

    def script(request: LLMRequest) -> Step:
        if request.purpose == "classify":
            return Answers({"label": "order", "language": "cs", "urgency": "low", "summary": "s"})
        return Says("Dobrý den, máme.")

    async with world.serving(world.write(document), script) as service:
        world.dovecot.deliver(world.user, mail())
        (row,) = await ended(service, 1)
        shown = await service.runs.row("default", str(row["id"]))
    assert (row["rule"], row["route"], row["profile"], row["job"]) == (None, "pipeline", None, "classify")
    assert [call["call_type"] for call in shown["llm_calls"]] == ["classify", "draft"]  # type: ignore[union-attr,index,call-overload]
    assert keywords(world.dovecot.flags(world.user)[0]) == {"order"}
    (draft,) = world.drafts()
    assert draft.subject == "Re: Ibuprofen 1"
    assert "máme" in draft.text
    assert (draft.in_reply_to, smtp.sent) == (("<m1@example.com>",), [])
    assert world.dovecot.flags(world.user, "Drafts") == [{"\\Draft"}]


async def test_automatic_mail_is_labelled_and_never_answered(world: World, smtp: SmtpServer) -> None:  # M15
    path = world.write(config(world.dovecot.port, world.user, smtp.port))
    async with world.serving(path, replying) as service:
        world.dovecot.deliver(world.user, mail(headers=["Auto-Submitted: auto-replied"]))
        (row,) = await ended(service, 1)
    assert (row["status"], row["iterations"]) == ("completed", 0)
    assert keywords(world.dovecot.flags(world.user)[0]) == {"automatic"}
    assert (smtp.sent, world.drafts(), world.select("SELECT * FROM llm_calls")) == ([], [], [])


async def test_without_a_flow_escalate_flags_the_mail(world: World) -> None:  # M11
    path = world.write(config(world.dovecot.port, world.user))
    script = [CallsTools([ToolCall("c", "escalate", {"reason": "a complaint"})]), Says("done")]
    async with world.serving(path, script) as service:
        world.dovecot.deliver(world.user, mail())
        (row,) = await ended(service, 1)
    assert row["tool_calls_log"][0]["result"]["status"] == "escalated"  # type: ignore[index,call-overload]
    assert world.dovecot.flags(world.user) == [{"\\Flagged", "escalated"}]


@pytest.mark.parametrize("decision", ["approved", "rejected"])
async def test_a_call_that_waits_goes_on_after_a_restart_and_a_decision(  # M11
    world: World, smtp: SmtpServer, decision: Any
) -> None:
    document = config(world.dovecot.port, world.user, smtp.port)
    document["agent"]["profiles"]["pharmacy"]["approval"] = {"send_reply": "prompt"}
    path = world.write(document)
    async with world.serving(path, replying) as service:
        world.dovecot.deliver(world.user, mail())
        (row,) = await ended(service, 1)
        shown = await service.runs.row("default", str(row["id"]))
    assert row["status"] == "waiting"
    (waiting,) = shown["waiting"]  # type: ignore[misc]
    assert (waiting["tool"], waiting["arguments"]["to"]) == ("send_reply", "jana@example.com")
    assert smtp.sent == []
    async with world.serving(path, replying) as service:
        await service.runs.decide("default", str(row["id"]), decision)
        (row,) = await ended(service, 1)
    assert (row["status"], row["final_message"]) == ("completed", "Answered.")
    (line,) = row["tool_calls_log"]  # type: ignore[misc]
    assert len(smtp.sent) == len(world.sent()) == (decision == "approved")
    assert ("error" in line["result"]) == (decision == "rejected")


async def test_a_decision_is_acted_on_within_five_seconds(world: World, smtp: SmtpServer) -> None:  # M11
    document = config(world.dovecot.port, world.user, smtp.port)
    document["agent"]["profiles"]["pharmacy"]["approval"] = {"send_reply": "prompt"}
    async with world.serving(world.write(document), replying) as service:
        world.dovecot.deliver(world.user, mail())
        (row,) = await ended(service, 1)
        await service.runs.decide("default", str(row["id"]), "approved")
        await until(lambda: smtp.sent, within_s=5.0)


async def test_a_mail_that_was_deleted_meanwhile_ends_its_run_with_the_reason(  # M1
    world: World, smtp: SmtpServer
) -> None:
    document = config(world.dovecot.port, world.user, smtp.port)
    document["agent"]["profiles"]["pharmacy"]["approval"] = {"send_reply": "prompt"}
    async with world.serving(world.write(document), replying) as service:
        world.dovecot.deliver(world.user, mail())
        (row,) = await ended(service, 1)
        with world.dovecot.client(world.user) as client:
            client.select_folder("INBOX")
            client.delete_messages([1])
            client.expunge()
        await service.runs.decide("default", str(row["id"]), "approved")
        (row,) = await ended(service, 1)
    assert (row["status"], row["error"]) == ("error", GONE)
    assert smtp.sent == []


async def test_what_is_remembered_too_long_goes_when_an_agent_works(world: World) -> None:  # M14
    path = world.write(config(world.dovecot.port, world.user))
    async with world.serving(path, [Says("fine")]) as service:
        world.dovecot.deliver(world.user, mail())
        await ended(service, 1)
    counts = "SELECT count(*) FROM mail_state WHERE id LIKE 'count:%'"
    ((before,),) = world.select(counts)
    assert before > 0
    with closing(sqlite3.connect(world.folder / "flows.sqlite3", timeout=10)) as writer:
        writer.execute("UPDATE mail_state SET position = 1 WHERE id LIKE 'count:%'")
        writer.commit()
    async with world.serving(path, [Says("fine")]):
        await until(lambda: world.select(counts) == [(0,)])
    ((boxes,),) = world.select("SELECT count(*) FROM mail_state WHERE id LIKE 'mailbox:%'")
    assert boxes == 1, "where the mailbox begins is never forgotten"


async def test_without_a_model_the_run_ends_with_its_reason(world: World) -> None:  # M9
    path = world.write(config(world.dovecot.port, world.user))
    async with world.serving(path, [Fails("not_configured")]) as service:
        world.dovecot.deliver(world.user, mail())
        (row,) = await ended(service, 1)
    assert row["status"] == "error"
    assert "not_configured" in str(row["error"])
    assert row["rule"] == "everything"


async def test_a_stopping_agent_gives_back_what_it_cannot_finish(world: World) -> None:  # M1
    path = world.write(config(world.dovecot.port, world.user))
    async with world.serving(path, [Stalls(8.0, Says("late"))]) as service:
        service.worker._tuning = type(service.worker._tuning)(stop_within_s=0.1)
        world.dovecot.deliver(world.user, mail())

        async def begun() -> bool:
            return any(row["status"] == "running" for row in await service.runs.rows("default"))

        await until(begun)
        await asyncio.sleep(0.1)
    async with world.serving(path, [Says("in time")]) as service:
        (row,) = await ended(service, 1)
    assert (row["status"], row["final_message"]) == ("completed", "in time")


@pytest.fixture
async def operators(world: World) -> AsyncIterator[httpx.AsyncClient]:
    path = world.write(config(world.dovecot.port, world.user))
    async with world.serving(path, [Says("fine")]) as service:
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            yield http


async def test_health_and_metrics(operators: httpx.AsyncClient, world: World) -> None:  # M1
    assert (await operators.get("/health/live")).json() == {"status": "ok"}
    ready = await operators.get("/health/ready")
    assert (ready.status_code, ready.json()["checks"]) == (200, {"pharmacy": "ok", "store": "ok"})
    world.dovecot.deliver(world.user, mail())

    async def counted() -> bool:
        return (
            'flow_engine_mail_runs_ended_total{job="agent_process",status="completed"} 1.0'
            in (await operators.get("/metrics")).text
        )

    await until(counted)
    text = (await operators.get("/metrics")).text
    assert 'flow_engine_mails_taken_in_total{mailbox="pharmacy"} 1.0' in text
    assert "jana" not in text


async def test_a_mailbox_that_cannot_be_opened_is_not_ready(  # M1
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "wrong")
    from channels.mail.loading import load_config  # noqa: PLC0415
    from service.mail_serve import mail_service  # noqa: PLC0415
    from service.settings import Settings  # noqa: PLC0415

    path, stopping = world.write(config(world.dovecot.port, world.user)), asyncio.Event()
    async with mail_service(Settings(data_dir=world.folder), load_config(path)) as service:
        running = asyncio.create_task(service.run(stopping))
        await until(lambda: service.intakes[0].problem != "not opened yet")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://x") as http:
            ready = await http.get("/health/ready")
        stopping.set()
        await running
    assert ready.status_code == 503
    assert ready.json()["checks"]["pharmacy"] == "the IMAP server refuses the login"
    assert orjson.dumps(ready.json()).count(b"wrong") == 0

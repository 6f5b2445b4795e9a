"""What the chat leaves behind: runs with their calls and costs, metrics, traces, and its readiness."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from adapters.models.fake_openai import FakeOpenAI
from adapters.models.scripted import Fails, Says, Stalls
from adapters.telemetry.otel import OpenTelemetryTracing
from channels.chat import sessions
from channels.chat.accounts import Accounts, AgentRun
from channels.chat.agents import ModelUse
from channels.chat.decisions import Decision
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.chat import SessionRef
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.records import Record, RecordTable
from flows.records import SqliteRecords
from flows.sqlite_store import FILE_NAME, SqliteDatabase
from tests.api.harness import SettableClock
from tests.channels.chat.harness import ORDERS, WEATHER, running_chat
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio

QUESTION = "What is the weather in Rome?"
CHOSEN = Says('{"agent": "weather_agent", "confidence": 0.9}')
PRICED = {**WEATHER, "model": "openai:gpt-4o"}


async def test_a_session_tells_what_everything_in_it_has_cost(tmp_path: Path) -> None:  # M14
    async with running_chat(tmp_path, [CHOSEN, Says("Sunny.")], routing=True) as chat:
        await chat.add(PRICED)
        await chat.http.patch("/v1/ai-agents/orchestrator", json={"model": "openai:gpt-4o-mini"})
        async with chat.client(language="en") as client:
            final = await client.say("m-1", QUESTION)
            page = (await chat.http.get(f"/v1/chat/sessions/{client.session}")).json()
            run = (await chat.runs(client.session))[0]
    routing = run["routing_calls"][0]
    assert (routing["call_type"], routing["model"], routing["status"]) == (
        "routing",
        "openai:gpt-4o-mini",
        "ok",
    )
    assert routing["duration_ms"] >= 0
    assert [call["call_type"] for call in run["llm_calls"]] == ["agent"]
    usage = page.pop("usage")
    assert usage["cost"] == pytest.approx(run["usage"]["cost"] + routing["cost"])
    assert usage["cost"] > run["usage"]["cost"] > 0
    assert usage["output_tokens"] == run["usage"]["output_tokens"] + routing["output_tokens"]
    assert page == {
        "session": client.session,
        "user": "u1",
        "language": "en",
        "active_agent": "weather_agent",
        "ended": False,
        "last_seq": final["seq"],
    }


async def test_a_call_that_failed_costs_nothing_and_leaves_the_cost_of_the_others_known(
    tmp_path: Path,
) -> None:  # M14
    script = [CHOSEN, Fails("refused"), CHOSEN, Says("Sunny.")]
    async with running_chat(tmp_path, script, routing=True) as chat:
        await chat.add({**PRICED, "model": None})
        await chat.http.patch("/v1/ai-agents/orchestrator", json={"model": "openai:gpt-4o-mini"})
        async with chat.client(language="en") as client:
            assert (await client.say("m-1", QUESTION))["state"] == "refused"  # by the installation's model
            await chat.http.patch("/v1/ai-agents/weather_agent", json={"model": PRICED["model"]})
            assert (await client.say("m-2", QUESTION))["state"] == "done"
            page = (await chat.http.get(f"/v1/chat/sessions/{client.session}")).json()
            failed, done = await chat.runs(client.session)
    assert [(call["status"], call["cost"]) for call in failed["llm_calls"]] == [("failed", 0)]
    routed = [run["routing_calls"][0]["cost"] for run in (failed, done)]
    assert failed["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost": 0}
    assert page["usage"]["cost"] == pytest.approx(sum(routed) + done["usage"]["cost"])


async def test_a_call_that_failed_and_a_model_without_a_price_are_accounted_too(
    tmp_path: Path,
) -> None:  # M14
    async with running_chat(tmp_path, [Fails("refused"), CHOSEN, Says("Sunny.")], routing=True) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            assert (await client.say("m-1", QUESTION))["state"] == "refused"
            assert (await client.say("m-2", QUESTION))["state"] == "done"
            page = (await chat.http.get(f"/v1/chat/sessions/{client.session}")).json()
            assert page["usage"]["cost"] is None
            assert page["usage"]["input_tokens"] > 0
            runs = await chat.runs(client.session)
            assert [call["status"] for call in runs[0]["routing_calls"]] == ["ok"]
        unknown = await chat.http.get("/v1/chat/sessions/nothing")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "session_unknown")


async def test_what_the_chat_does_is_counted_and_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # F36
    exporter = InMemorySpanExporter()
    tracing = OpenTelemetryTracing(SimpleSpanProcessor(exporter))
    async with FakeOpenAI([CHOSEN, Says("Sunny.")]).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        async with running_chat(tmp_path, routing=True, on_wire=True, tracing=tracing) as chat:
            await chat.add(WEATHER)
            async with chat.client() as client:
                await client.say("m-1", QUESTION)
                await client.send(type="message", id="m-1", content=QUESTION)
                await client.next()
            page = (await chat.http.get("/metrics")).text
    for line in (
        "flow_engine_chat_connections_total 1.0",
        'flow_engine_chat_messages_total{outcome="queued"} 1.0',
        'flow_engine_chat_messages_total{outcome="duplicate"} 1.0',
        'flow_engine_chat_decisions_total{action="accept",decided_by="model"} 1.0',
        'flow_engine_chat_answers_total{state="done"} 1.0',
        'flow_engine_chat_runs_total{status="completed"} 1.0',
        'flow_engine_model_calls_total{outcome="ok",purpose="routing"} 1.0',
        'flow_engine_model_calls_total{outcome="ok",purpose="agent"} 1.0',
        'flow_engine_http_requests_total{method="POST",route="/v1/ai-agents",status="201"} 1.0',
    ):
        assert line in page
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {"POST /v1/ai-agents", "chat answer", "model routing", "model agent"} <= spans.keys()
    answer = spans["chat answer"].get_span_context()
    parent = spans["model agent"].parent
    assert answer is not None
    assert parent is not None
    assert parent.span_id == answer.span_id
    assert "Rome" not in "".join(span.to_json() for span in spans.values())


async def test_readiness_names_what_is_away(tmp_path: Path, redis_server: RedisServer) -> None:  # F36
    settings = {"redis_url": redis_server.url, "redis_unsafe": True}
    async with running_chat(tmp_path, settings=settings) as chat:
        ready = await chat.http.get("/health/ready")
        assert (ready.status_code, ready.json()) == (
            200,
            {"status": "ok", "checks": {"memory": "ok", "flows": "ok"}},
        )
        redis_server.pause()
        try:
            away = await chat.http.get("/health/ready")
        finally:
            redis_server.resume()
        assert (away.status_code, away.json()["status"], away.headers["retry-after"]) == (
            503,
            "unavailable",
            "1",
        )


async def test_one_on_a_redis_that_would_lose_sessions_is_not_ready(
    tmp_path: Path, start_redis: StartRedis
) -> None:  # F36, F44
    server = start_redis()
    async with running_chat(tmp_path, settings={"redis_url": server.url}) as chat:
        with server.client() as client:
            client.config_set("appendonly", "no")
        with capture_logs() as logs:
            away = await chat.http.get("/health/ready")
        assert away.status_code == 503
        assert "appendonly is no" in away.json()["checks"]["memory"]
        told = [(line["event"], line["memory"]) for line in logs]
        assert told == [("not_ready", away.json()["checks"]["memory"])]  # F46
        server.stop()
        with capture_logs() as logs:
            await chat.http.get("/health/ready")
        (reason,) = (line["reasons"]["memory"] for line in logs if line["event"] == "not_ready")
        assert "Error 111 connecting" in reason


async def test_replicas_share_one_budget_of_model_calls(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:  # F38
    settings = {"redis_url": redis_server.url, "redis_unsafe": True}
    async with FakeOpenAI([Says("Sunny.")]).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        async with (
            running_chat(tmp_path, on_wire=True, settings=settings) as one,
            running_chat(tmp_path, on_wire=True, settings=settings) as other,
        ):
            await one.add({**WEATHER, "model": "local:tiny"})
            while len((await other.http.get("/v1/ai-agents")).json()) < 3:  # live there within 2 s
                await asyncio.sleep(0.05)
            for chat in (one, other):
                async with chat.client() as client:
                    assert (await client.say("m-1", QUESTION))["state"] == "done"
        with redis_server.client() as redis:
            keys = [key for key in redis.keys("*:chat-model-calls:*") if not key.endswith(b"tenants")]
            assert sum(int(redis.get(key) or 0) for key in keys) == 2


async def test_rows_with_a_model_talk_where_the_installation_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C1, C7
    async with FakeOpenAI([Says("Sunny.")]).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        async with running_chat(tmp_path, on_wire=True) as chat:
            await chat.add({**WEATHER, "model": "local:tiny"}, ORDERS)
            async with chat.client() as client:
                assert (await client.say("m-1", QUESTION))["state"] == "done"
                assert (await client.say("m-2", "I would like to order a pizza"))["state"] == "refused"
                assert client.of("m-2", "error")[0]["content"]["code"] == "model_failed"
                assert {each["decided_by"] for each in await chat.decisions(client.session)} == {"scores"}
    assert [request.body["model"] for request in server.requests] == ["tiny"]


async def test_an_account_outlasts_a_lock_of_another_replica(
    tmp_path: Path,
) -> None:  # M14
    database = SqliteDatabase(tmp_path, busy_timeout_ms=10)
    await database.open()
    names: tuple[RecordTable, ...] = ("agent_runs", "llm_calls", "chat_decisions")
    stores = [SqliteRecords(database, name) for name in names]
    accounts = Accounts(*stores, SystemClock())
    ref = SessionRef("t", "s")
    await accounts.ran(ref, AgentRun("a", "m-1"))
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        keeping = asyncio.create_task(accounts.ran(ref, AgentRun("a", "m-2")))
        await asyncio.sleep(0.08)
        other.execute("COMMIT")
        await keeping
    assert [run["message"] for run in await accounts.runs(ref)] == ["m-1", "m-2"]
    await database.close()
    await accounts.ran(ref, AgentRun("a", "m-3"))  # logged, and nothing raised


class SlowRecords(SqliteRecords):
    """Each record waits until `go_on` is set."""

    go_on = asyncio.Event()

    async def insert(self, tenant_id: str, record: Record) -> bool:
        await self.go_on.wait()
        return await super().insert(tenant_id, record)


async def test_an_answer_that_is_cancelled_again_while_it_is_accounted_loses_no_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # M14
    database = SqliteDatabase(tmp_path)
    await database.open()
    names: tuple[RecordTable, ...] = ("agent_runs", "llm_calls", "chat_decisions")
    stores = [SlowRecords(database, name) for name in names]
    accounts, ref = Accounts(*stores, SystemClock()), SessionRef("t", "s")
    uses = [ModelUse("openai:gpt-4o", "ok", 1, 1, 1), ModelUse("openai:gpt-4o", "failed", 0, 0, 1)]
    decision = Decision([], None, None, "refuse", "nobody fits", "scores")
    waiting = [
        asyncio.create_task(accounts.routed(ref, "m-1", uses[:1])),
        asyncio.create_task(accounts.decided(ref, "m-1", decision, None)),
        asyncio.create_task(accounts.ran(ref, AgentRun("a", "m-1", "cancelled", uses=uses))),
    ]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert all(task.cancelled() for task in waiting)
    closing = asyncio.create_task(accounts.aclose())
    await asyncio.sleep(0.01)
    assert not closing.done()
    SlowRecords.go_on.set()
    await closing
    (run,) = await accounts.runs(ref)
    assert (run["status"], len(run["llm_calls"]), len(run["routing_calls"])) == ("cancelled", 2, 1)  # type: ignore[arg-type]
    assert [each["action"] for each in await accounts.decisions(ref)] == ["refuse"]
    await database.close()
    assert "account_lost" not in "".join(capsys.readouterr())


async def test_a_chat_that_stops_keeps_the_accounts_of_what_it_stops(tmp_path: Path) -> None:  # M14
    async with running_chat(tmp_path, [Stalls(9)]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            while not chat.model.requests:
                await asyncio.sleep(0.01)
            await client.send(type="cancel", id="m-1")
            await client.send(type="cancel", id="m-1")
    database = SqliteDatabase(tmp_path)
    await database.open()
    (run,) = await SqliteRecords(database, "agent_runs").list("default", client.session)
    (call,) = await SqliteRecords(database, "llm_calls").list("default", run.id)
    await database.close()
    assert (run.body["status"], run.body["iterations"], call.body["status"]) == ("cancelled", 1, "failed")


async def test_accounts_are_kept_for_their_days_and_then_deleted_with_all_that_came_of_a_message(
    tmp_path: Path,
) -> None:  # M14, C8
    database = SqliteDatabase(tmp_path)
    await database.open()
    names: tuple[RecordTable, ...] = ("agent_runs", "llm_calls", "chat_decisions")
    stores, clock = [SqliteRecords(database, name) for name in names], SettableClock()
    accounts, uses = Accounts(*stores, clock), [ModelUse("openai:gpt-4o", "ok", 1, 1, 1)]
    old, new, mail = SessionRef("t", "s-old"), SessionRef("t", "s-new"), Record("mail", {}, "mail:ended")
    await stores[0].insert("t", mail)
    for ref, message, days in ((old, "m-1", 0), (new, "m-1", 0), (new, "m-2", 20)):
        clock.advance(days=days)
        await accounts.routed(ref, message, uses)
        await accounts.decided(ref, message, Decision([], "a", 1, "accept", "it fits", "model"), 1)
        await accounts.ran(ref, AgentRun("a", message, final_message="Dear Ada", uses=uses))
        if message == "m-1":
            await accounts.routed(ref, "m-0", uses)  # whose model failed
    clock.advance(days=10, seconds=1)
    async with accounts.forgetting(["other", "t"], 30):
        async with asyncio.timeout(30):
            while len(await stores[2].list("t", None)) > 1:
                await asyncio.sleep(0.01)
    assert await accounts.runs(old) == await accounts.decisions(old) == []
    (run,) = await accounts.runs(new)
    assert (run["message"], len(run["llm_calls"]), len(run["routing_calls"])) == ("m-2", 1, 1)  # type: ignore[arg-type]
    assert [each["message"] for each in await accounts.decisions(new)] == ["m-2"]
    assert {call.body["message"] for call in await stores[1].list("t", None)} == {"m-2"}
    assert await stores[0].get("t", "mail") == mail
    await database.close()


async def test_a_session_without_messages_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12
    monkeypatch.setattr(sessions, "SWEEP_S", 0.02)
    async with running_chat(tmp_path, chat_idle_s=0.2) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            page = f"/v1/chat/sessions/{client.session}"
            async with asyncio.timeout(30):
                while not (await chat.http.get(page)).json()["ended"]:
                    await asyncio.sleep(0.02)
            assert (await client.say("m-2", QUESTION))["state"] == "refused"
            assert client.of("m-2", "error")[0]["content"]["code"] == "session_ended"


MAIL = """
mailboxes:
  - name: desk
    address: desk@example.com
    imap: {host: mail.example.com, user: desk, password_env: MAIL_PASSWORD}
agent:
  profiles:
    pharmacy:
      model: openai/gpt-4o
      temperature: 0.2
      system_prompt_file: pharmacy.md
      tools: [search_drugs, create_draft]
      approval: {search_drugs: prompt}
tools:
  search_drugs:
    url: https://drugs.example.com/search
    method: POST
    description: Finds medicines.
    parameters: {type: object, properties: {query: {type: string}}, required: [query]}
"""


async def test_profiles_of_a_mail_agent_are_rows_where_they_are_missing(tmp_path: Path) -> None:  # C1
    config = tmp_path / "mail.yaml"
    config.write_text(MAIL)
    (tmp_path / "pharmacy.md").write_text("Answer questions about medicines.")
    async with running_chat(tmp_path, chat_mail_config=config) as chat:
        row = (await chat.http.get("/v1/ai-agents/pharmacy")).json()
        assert (row["task"], row["model"], row["temperature"], row["tools"], row["revision"]) == (
            "Answer questions about medicines.",
            "openai/gpt-4o",
            0.2,
            [],
            1,
        )
        assert row["http_tools"]["search_drugs"]["approval"] == "prompt"
        assert (await chat.http.post("/v1/ai-agents/validate", json={**row, "name": "x"})).status_code == 200
        await chat.http.patch("/v1/ai-agents/pharmacy", json={"task": "Edited."})
    async with running_chat(tmp_path, chat_mail_config=config) as chat:
        row = (await chat.http.get("/v1/ai-agents/pharmacy")).json()
        assert (row["task"], row["revision"]) == ("Edited.", 2)


async def test_a_profile_that_no_row_can_be_is_told_with_its_pointer(tmp_path: Path) -> None:  # C1
    config = tmp_path / "mail.yaml"
    config.write_text(MAIL.replace("search_drugs", "ask_user"))
    (tmp_path / "pharmacy.md").write_text("Answer.")
    with pytest.raises(CorrectTheInput) as refused:
        async with running_chat(tmp_path, chat_mail_config=config):
            pass
    assert [each.pointer for each in refused.value.findings] == [
        "/agent/profiles/pharmacy/http_tools/ask_user"
    ]


async def test_a_chat_that_is_probed_needs_no_key(tmp_path: Path) -> None:  # F36
    async with running_chat(tmp_path) as chat, httpx.AsyncClient() as anybody:
        for path in ("/health/live", "/health/ready", "/metrics"):
            assert (await anybody.get(f"http://127.0.0.1:{chat.port}{path}")).status_code == 200

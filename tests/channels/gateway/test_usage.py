"""What is written down of each call: usage records, metrics, spans, and the money of a day."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from typer.testing import CliRunner

from adapters.models.fake_http import Received
from channels.gateway.cache import ResponseCache, cache_stats, clear_cache
from channels.gateway.database import GatewayDatabase
from channels.gateway.usage import UsageRecord, UsageRecords, usage_between
from flow_engine.ports.telemetry import Attributes, SpanKind, Untraced
from service.cli import app
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.gateway.gateway_world import CHUNKS, chunk, completion, gateway, plain, stream

pytestmark = pytest.mark.anyio

PRICED = {**completion(), "model": "gpt-4o-2024-08-06"}
PRICED["usage"] = {
    "prompt_tokens": 1_000_000,
    "completion_tokens": 100_000,
    "total_tokens": 1_100_000,
    "prompt_tokens_details": {"cached_tokens": 400_000},
}


def record(at: float, *, tenant: str = "t", key: str = "k", usd: float | None = 1.0) -> UsageRecord:
    return UsageRecord(at, tenant, key, "chat", "b", "m", "ok", None, 3, 2, usd, 5, 9)


async def test_every_call_of_a_backend_is_a_record(tmp_path: Path) -> None:
    def script(got: Received) -> Reply:
        if got.body.get("stream"):
            return stream(*CHUNKS, {**chunk({}), "choices": [], "usage": {"prompt_tokens": 7}})
        return plain({}, status=500)

    async with (
        ExactServer(script).running() as one,
        ExactServer(lambda _: plain(PRICED)).running() as two,
        gateway(
            tmp_path,
            {"url": f"{one.origin}/v1", "aliases": {"small": "gpt-4o"}, "fallbacks": ["b1"]},
            {"url": f"{two.origin}/v1", "weight": 0},
        ) as world,
    ):
        await world.streamed(model="m")
        await world.chat(model="small")
        await world.chat(model="m", stream=True, temperature=0)
        await world.chat(model="m", stream=True, temperature=0)  # from the cache: no call
    sums = await usage_between(tmp_path / "gateway.db", 0, 1e12)
    assert [(s.tenant, s.key, s.backend, s.model, s.calls, s.failed) for s in sums] == [
        ("default", "local", "b0", "gpt-4o", 1, 1),
        ("default", "local", "b0", "m", 2, 0),
        ("default", "local", "b1", "gpt-4o-2024-08-06", 1, 0),
    ]
    assert [(s.input_tokens, s.output_tokens) for s in sums] == [(0, 0), (14, 0), (1_000_000, 100_000)]
    # 600,000 at 2.50, 400,000 of the provider's cache at 1.25, 100,000 at 10 dollars a million
    assert [round(s.usd, 6) for s in sums] == [0, 0, 3.0]


def test_the_operator_reads_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill() -> None:
        database = GatewayDatabase(tmp_path / "gateway.db")
        records = UsageRecords(database, 10, lambda: 86_400.0 * 5)
        async with database.running():
            for at in (86_399.0, 86_400.0, 172_799.9, 172_800.0):
                records.add(record(at))

    asyncio.run(fill())
    monkeypatch.setenv("FLOW_ENGINE_DATA_DIR", str(tmp_path))
    shown = CliRunner().invoke(app, ["gateway", "usage", "--day", "1970-01-02", "--json"])
    [found] = json.loads(shown.stdout)["usage"]
    assert (found["key"], found["calls"], found["input_tokens"], found["usd"]) == ("k", 2, 6, 2.0)
    text = CliRunner().invoke(app, ["gateway", "usage", "--day", "1970-01-02"]).stdout
    assert "2 calls" in text
    assert CliRunner().invoke(app, ["gateway", "usage"]).stdout == ""


async def test_a_day_s_money_is_that_of_all_processes_and_outlives_them(tmp_path: Path) -> None:
    now = 86_400.0 * 3 + 10
    first, second = GatewayDatabase(tmp_path / "g.db"), GatewayDatabase(tmp_path / "g.db")
    one, two = UsageRecords(first, 10, lambda: now), UsageRecords(second, 10, lambda: now)
    async with second.running():
        async with first.running():
            one.add(record(now))
            one.add(record(now, usd=None))
            one.add(record(now - 20))  # yesterday's
            one.add(record(now, tenant="u", usd=0.5))
            assert one.spent_today("t", "k") == 1.0
            assert one.spent_today(None, "k") == 1.5
        two.add(record(now))
        async with asyncio.timeout(30):
            while two.spent_today("t", "k") < 2.0:
                await asyncio.sleep(0.05)
        assert two.spent_today("t", "k") == 2.0
        now += 86_400
        assert two.spent_today("t", "k") == 0
    three = GatewayDatabase(tmp_path / "g.db")
    again = UsageRecords(three, 10, lambda: now - 86_400)
    async with three.running():
        assert again.spent_today("t", "k") == 2.0


async def test_records_are_dropped_after_their_days(tmp_path: Path) -> None:
    now = 86_400.0 * 20
    for at in (now - 86_400 * 11, now):
        database = GatewayDatabase(tmp_path / "g.db")
        records = UsageRecords(database, 10, lambda: now)
        async with database.running():
            records.add(record(at))
    assert [each.calls for each in await usage_between(tmp_path / "g.db", 0, 1e12)] == [1]


async def test_why_a_database_takes_no_records_is_told(tmp_path: Path) -> None:  # F46
    database = GatewayDatabase(tmp_path / "g.db")
    async with database.running():
        ((pages,),) = await database.rows("PRAGMA page_count")
        await database.rows(f"PRAGMA max_page_count = {pages}")
        with capture_logs() as logs:
            assert not await database.change("CREATE TABLE more AS SELECT randomblob(9000)", [()])
            assert await database.rows("SELECT nothing") == []
    told = [(line["event"], line["reason"]) for line in logs]
    assert told == [("gateway_database_failed", "SQLITE_FULL"), ("gateway_database_failed", "SQLITE_ERROR")]


async def test_a_database_that_fails_loses_no_record(tmp_path: Path) -> None:
    now = 86_400.0 * 20
    database = GatewayDatabase(tmp_path / "g.db")
    records = UsageRecords(database, 10, lambda: now)
    async with database.running():
        await database.change("ALTER TABLE usage_records RENAME TO away", [()])
        records.add(record(now))
    assert records.spent_today("t", "k") == 1.0
    async with database.running():
        assert records.spent_today("t", "k") == 1.0
    assert [each.calls for each in await usage_between(tmp_path / "g.db", 0, 1e12)] == [1]


@pytest.mark.parametrize(
    ("odd", "model", "counted"),
    [
        (2**64 - 1, "m", (3, 0)),
        (2**63, "m", (3, 0)),
        (2**53 - 1, "m", (3, 2**53 - 1)),
        (2.0, "m", (3, 0)),
        (-5, "m", (3, 0)),
        (2, "m\ud800", (3, 2)),
    ],
)
async def test_an_odd_answer_of_a_backend_leaves_the_books_open(
    odd: float, model: str, counted: tuple[int, int], tmp_path: Path
) -> None:
    answer = {**completion(), "model": model, "usage": {"prompt_tokens": 3, "completion_tokens": odd}}
    async with (
        ExactServer(lambda _: Reply([json.dumps(answer).encode()])).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        assert (await world.quick())[0] == 200
        async with asyncio.timeout(30):
            while not (sums := await usage_between(tmp_path / "gateway.db", 0, 1e12)):
                await asyncio.sleep(0.05)
        assert [(each.input_tokens, each.output_tokens) for each in sums] == [counted]
        assert await clear_cache(tmp_path / "gateway.db") == 0  # no lock is held


async def test_an_odd_error_of_a_backend_leaves_the_books_open(tmp_path: Path) -> None:
    refusal = Reply([b'{"error": {"message": "no", "code": "c\\ud800"}}'], status=400)
    async with (
        ExactServer(lambda _: refusal).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        assert (await world.quick())[0] == 400
    assert [each.failed for each in await usage_between(tmp_path / "gateway.db", 0, 1e12)] == [1]


@pytest.mark.parametrize("value", [2**64, "\ud800", b"".join, ()])
async def test_what_no_row_can_hold_changes_nothing_and_locks_nothing(value: object, tmp_path: Path) -> None:
    database = GatewayDatabase(tmp_path / "g.db")
    async with database.running():
        statement = "UPDATE cache_state SET hits = ?"
        assert not await database.change(statement, [(7,), (value,)])
        assert await clear_cache(tmp_path / "g.db") == 0
        assert await database.change(statement, [(8,)])
        assert await database.rows("SELECT hits FROM cache_state") == [(8,)]


@pytest.mark.parametrize("at", [1, 2])
async def test_a_database_is_closed_whatever_its_last_flush_does(at: int, tmp_path: Path) -> None:
    before, flushes = threading.active_count(), 0

    async def flush() -> None:
        nonlocal flushes
        flushes += 1
        if flushes == at:
            raise RuntimeError("a bug")

    database = GatewayDatabase(tmp_path / "g.db")
    database.at_each_flush(flush)
    with pytest.raises(RuntimeError, match="a bug"):
        async with database.running():
            pass
    async with asyncio.timeout(30):
        while threading.active_count() > before:  # one that is left would keep the process
            await asyncio.sleep(0.01)


@dataclass
class Watched(Untraced):
    on: bool = True
    spans: list[tuple[str, SpanKind, Mapping[str, Any]]] = field(default_factory=list[Any])

    def finished(self, name: str, kind: SpanKind, *, seconds: float, attributes: Attributes) -> None:
        self.spans.append((name, kind, attributes))


async def test_a_stream_that_is_whole_counts_as_such(tmp_path: Path) -> None:
    ending = Reply([*stream(*CHUNKS).pieces, b": the end comes late\n\n"], pause_s=0.02)
    async with (
        ExactServer(lambda _: ending).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        assert len(await world.streamed()) == 5
        assert (await world.chat({"Cache-Control": "only-if-cached"}, temperature=0)).status_code == 504
        counted = 'requests_total{cache="bypass",operation="chat",status="200"} 1.0'
        async with asyncio.timeout(30):
            while counted not in (shown := (await world.http.get("/metrics")).text):
                await asyncio.sleep(0.02)
    assert 'requests_total{cache="miss",operation="chat",status="504"} 1.0' in shown
    assert server.left == []


async def test_spans_and_metrics_follow_the_conventions(tmp_path: Path) -> None:
    tracing = Watched()
    async with (
        ExactServer(
            lambda got: plain(PRICED) if got.body["model"] == "m" else plain({}, status=429)
        ).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1", "models": ["m", "n"]}, tracing=tracing) as world,
    ):
        await world.chat(temperature=0.5, max_tokens=10)
        await world.chat(model="n")
        families = text_string_to_metric_families((await world.http.get("/metrics")).text)
        samples = {(s.name, s.labels.get("gen_ai_token_type")): s for f in families for s in f.samples}
    (name, kind, attributes), (failed_name, _, failed) = tracing.spans
    assert (name, kind) == ("chat m", "client")
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 10,
        "gen_ai.response.model": "gpt-4o-2024-08-06",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.input_tokens": 1_000_000,
        "gen_ai.usage.output_tokens": 100_000,
        "server.address": "127.0.0.1",
        "server.port": server.port,
    }
    assert (failed_name, failed["error.type"]) == ("chat n", "429")
    labels = samples["gen_ai_client_token_usage_sum", "input"].labels
    assert labels["gen_ai_provider_name"] == "openai"
    assert samples["gen_ai_client_token_usage_sum", "output"].value == 100_000
    assert samples["gen_ai_client_operation_duration_seconds_count", None].value > 0


async def test_an_end_in_the_middle_of_a_flush_doubles_no_bill_and_loses_no_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # W7
    monkeypatch.setattr("channels.gateway.database.FLUSH_EVERY_S", 0.01)
    path, waits = tmp_path / "gateway.db", asyncio.Event()
    database = GatewayDatabase(path)

    async def begins() -> None:
        if other.in_transaction:
            waits.set()

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        database.at_each_flush(begins)
        records = UsageRecords(database, 10, lambda: 1_000.0)
        cache = ResponseCache(database, 60, lambda: 1_000.0)
        async with database.running():
            entry = cache.put("k", [b"{}"], "m", cache.epoch)
            assert entry is not None
            await cache.write("k", entry, cache.epoch)
            assert cache.near("k") is not None
            records.add(record(1_000.0))
            other.execute("BEGIN IMMEDIATE")
            await waits.wait()
            asyncio.get_running_loop().call_later(0.05, other.execute, "ROLLBACK")
    assert [each.calls for each in await usage_between(path, 0, 1e12)] == [1]
    assert (await cache_stats(path, 1_000.0)).hits == 1

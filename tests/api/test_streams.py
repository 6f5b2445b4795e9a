"""Journals that are followed, over real sockets: what stands first, then what comes, until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, cast

import httpx
import orjson
import pytest
import structlog

import api.streams as streams_module
import flow_engine.use_cases.following as following_module
from flow_engine.runtime.journal import JournalEntry
from flow_engine.runtime.privacy import Veil
from flow_engine.use_cases import history
from flow_engine.use_cases.following import Followed
from flow_engine.use_cases.history import JournalRow, learn
from memory.connection import connect
from tests.api.harness import Scene, clinic, entry, open_scene
from tests.redis_fixture import RedisServer
from tests.scripted.playing import Wire, served

pytestmark = pytest.mark.anyio

PATH = "/v1/conversations/conv-1/stream"
WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "LOOKED_AGAIN_AFTER_S", 0.05)
    monkeypatch.setattr(following_module, "QUIET_AFTER_CLOSE_S", 0.2)


@pytest.fixture
async def live() -> AsyncIterator[tuple[Scene, Wire]]:
    async with open_scene(clinic(), streams_at_once=2) as scene, served(scene) as wire:
        await scene.started()
        yield scene, wire


class Reader:
    """What comes over a stream, event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments = 0
        self._lines = response.aiter_lines()

    async def event(self) -> dict[str, str]:
        """The next one; comments are counted. Empty at the end of the stream."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(WITHIN_S):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif fields:
                    return fields
        return fields

    async def seqs(self, number: int) -> list[int]:
        return [int((await self.event())["id"]) for _ in range(number)]


@asynccontextmanager
async def followed(wire: Wire, query: str = "", **headers: str) -> AsyncGenerator[Reader]:
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{wire.port}", timeout=WITHIN_S) as http,
        http.stream("GET", PATH + query, headers={k.replace("_", "-"): v for k, v in headers.items()}) as got,
    ):
        yield Reader(got)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not true():
            await asyncio.sleep(0.01)


async def test_what_somebody_says_is_told_once_it_was_read() -> None:  # journal: sensitive
    document = clinic()
    next(v for v in document["variables"] if v["_id"] == "var_phone")["sensitive"] = True
    async with open_scene(document) as scene, served(scene) as wire:
        await scene.started()
        await scene.say("m-1", "Call me on +39 347 123 4567")
        async with followed(wire, "?after=0") as reader:
            assert await reader.seqs(1) == [1]
            following = asyncio.create_task(reader.event())
            await asyncio.sleep(0.2)
            assert not following.done()
            scene.clock.advance(seconds=1)
            await scene.work()
            entry = orjson.loads((await following)["data"])
            assert (entry["seq"], entry["input"]["body"]) == (2, "Call me on [hidden]")
            assert await reader.seqs(1) == [3]


async def test_a_long_one_is_not_read_again_for_each_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # journal: stream
    learned: list[int] = []

    async def counting(veil: Veil, entry: JournalEntry, *versions: Any) -> None:
        learned.append(entry.seq)
        await learn(veil, entry, *versions)

    monkeypatch.setattr(history, "learn", counting)
    document = clinic()
    next(v for v in document["variables"] if v["_id"] == "var_string")["sensitive"] = True
    async with open_scene(document) as scene, served(scene) as wire:
        await scene.started()
        async with followed(wire, "?after=0") as reader:
            for number in range(1, 6):
                assert await reader.seqs(1) == [number]
                await scene.written(entry("var_string", f"secret-{number}"))
            told = orjson.loads((await reader.event())["data"])
        assert "secret" not in orjson.dumps(told).decode()
        assert learned == [1, 2, 3, 4, 5, 6]


def is_open(scene: Scene) -> float:
    return next(
        sample.value
        for metric in scene.service.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "flow_engine_streams_open"
    )


class TestFollowing:
    async def test_what_stands_comes_first_then_each_entry_as_it_is_committed(
        self, live: tuple[Scene, Wire]
    ) -> None:
        scene, wire = live  # journal: stream
        await scene.written(entry("var_string", "one"))
        async with followed(wire) as reader:
            assert reader.response.status_code == 200
            assert reader.response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert reader.response.headers["x-accel-buffering"] == "no"
            assert reader.response.headers["cache-control"] == "no-cache, no-transform"
            first, second = await reader.event(), await reader.event()
            assert [first["id"], second["id"]] == ["1", "2"]
            page = await scene.http.get("/v1/conversations/conv-1/journal")
            assert [orjson.loads(each["data"]) for each in (first, second)] == page.json()["entries"]
            await scene.written(entry("var_string", "two"))
            assert orjson.loads((await reader.event())["data"])["input"]["op"] == "memory"
            await scene.changed("operator")
            assert await reader.seqs(1) == [4]

    @pytest.mark.parametrize(
        ("query", "headers"),
        [("?after=2", {}), ("", {"Last_Event_ID": "2"}), ("?after=1", {"Last_Event_ID": "2"})],
    )
    async def test_it_goes_on_behind_what_the_reader_has(
        self, live: tuple[Scene, Wire], query: str, headers: dict[str, str]
    ) -> None:
        scene, wire = live
        for value in ("one", "two"):
            await scene.written(entry("var_string", value))
        async with followed(wire, query, **headers) as reader:
            assert await reader.seqs(1) == [3]

    async def test_a_commit_of_another_process_is_heard(self, start_redis: Callable[[], RedisServer]) -> None:
        redis = start_redis()
        async with (
            open_scene(clinic(), memory=connect(redis.url)) as writer,
            open_scene(clinic(), memory=connect(redis.url)) as reading,
            served(reading) as wire,
        ):
            await writer.started()
            async with followed(wire) as reader:
                assert await reader.seqs(1) == [1]
                await writer.written(entry("var_string", "one"))
                assert await reader.seqs(1) == [2]
                redis.kill()  # a stream outlives its store's absence
                redis.start()
                await until_taken(writer)
                assert await reader.seqs(1) == [3]

    async def test_a_quiet_one_is_kept_alive_by_comments(
        self, live: tuple[Scene, Wire], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene, wire = live
        monkeypatch.setattr(streams_module, "KEEP_ALIVE_S", 0.1)
        async with followed(wire, "?after=1") as reader:
            coming = asyncio.create_task(reader.event())
            await until(lambda: reader.comments > 3)
            await scene.written(entry("var_string", "one"))
            assert (await coming)["id"] == "2"


async def until_taken(writer: Scene) -> None:
    """A write that the store takes, once it is back."""
    async with asyncio.timeout(WITHIN_S):
        while (await writer.write(entry("var_string", "two"))).status_code != 200:
            await asyncio.sleep(0.05)


class TestEnd:
    @pytest.mark.parametrize("path", [PATH, "/v1/conversations"])
    async def test_a_head_has_no_events_and_its_connection_goes_on(
        self, live: tuple[Scene, Wire], path: str
    ) -> None:  # F36
        scene, wire = live
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{wire.port}", limits=limits) as http:
            head = await http.head(path, headers={"Accept": "text/event-stream"})
            assert (head.status_code, head.headers["content-type"][:17]) == (200, "text/event-stream")
            assert (await http.get("/health/live")).status_code == 200
        await until(lambda: is_open(scene) == 0)

    async def test_it_ends_when_all_is_told_of_a_closed_conversation(self, live: tuple[Scene, Wire]) -> None:
        scene, wire = live
        async with followed(wire) as reader:
            await scene.end()
            assert await reader.seqs(2) == [1, 2]
            assert await reader.event() == {"event": "end", "data": '{"reason":"closed"}'}
            assert await reader.event() == {}
        async with followed(wire, "?after=1") as reader:
            assert await reader.seqs(1) == [2]
            assert (await reader.event())["data"] == '{"reason":"closed"}'
        async with followed(wire, Last_Event_ID="2") as reader:
            assert reader.response.status_code == 204, "so that an EventSource does not come again"

    async def test_it_ends_with_an_erasure_and_nobody_gets_another(self, live: tuple[Scene, Wire]) -> None:
        scene, wire = live
        async with followed(wire) as reader:
            assert await reader.seqs(1) == [1]
            assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
            assert await reader.event() == {"event": "end", "data": '{"reason":"erased"}'}
        async with followed(wire, Last_Event_ID="1") as reader:
            assert reader.response.status_code == 404

    async def test_one_that_begins_anew_under_the_id_is_another(self, live: tuple[Scene, Wire]) -> None:
        scene, wire = live
        await scene.written(entry("var_string", "one"))
        async with followed(wire) as reader:
            assert await reader.seqs(2) == [1, 2]
            assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
            await scene.started()
            assert (await reader.event())["data"] == '{"reason":"erased"}'
        async with followed(wire, Last_Event_ID="2") as reader:
            assert await reader.seqs(1) == [1], "who has entries that are gone gets all"

    async def test_a_process_that_stops_ends_it_and_takes_no_other(self, live: tuple[Scene, Wire]) -> None:
        scene, wire = live
        async with followed(wire) as reader:
            assert await reader.seqs(1) == [1]
            scene.service.end_streams()
            assert (await reader.event())["data"] == '{"reason":"stopping"}'
        async with followed(wire) as reader:
            assert reader.response.status_code == 503


class TestLists:
    PATH = "/v1/conversations"

    @asynccontextmanager
    async def listed(self, wire: Wire, query: str = "") -> AsyncGenerator[Reader]:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{wire.port}", timeout=WITHIN_S) as http,
            http.stream("GET", self.PATH + query, headers={"Accept": "text/event-stream"}) as got,
        ):
            yield Reader(got)

    async def test_all_rows_come_first_then_those_that_change_and_what_has_gone(
        self, live: tuple[Scene, Wire]
    ) -> None:
        scene, wire = live  # F15
        async with self.listed(wire) as reader:
            first = orjson.loads((await reader.event())["data"])
            assert first == {
                "conversations": (await scene.http.get(self.PATH)).json()["conversations"],
                "gone": [],
            }
            await scene.changed("operator")
            changed = orjson.loads((await reader.event())["data"])
            assert [row["task"] for row in changed["conversations"]] == ["operator"]
            await scene.started(conversationId="conv-2", contactId="call-2")
            added = orjson.loads((await reader.event())["data"])
            assert [row["conversationId"] for row in added["conversations"]] == ["conv-2"]
            await scene.http.delete("/v1/conversations/conv-2")
            assert orjson.loads((await reader.event())["data"]) == {"conversations": [], "gone": ["conv-2"]}
            scene.service.end_streams()
            assert (await reader.event()) == {"event": "end", "data": '{"reason":"stopping"}'}

    async def test_a_list_without_rows_is_told_too(self, live: tuple[Scene, Wire]) -> None:  # F36
        scene, wire = live
        async with self.listed(wire, "?status=closed") as reader:
            assert orjson.loads((await reader.event())["data"]) == {"conversations": [], "gone": []}
            await scene.end()
            changed = orjson.loads((await reader.event())["data"])
            assert [row["conversationId"] for row in changed["conversations"]] == ["conv-1"]

    async def test_the_filters_hold_and_a_conversation_that_no_longer_matches_has_gone(
        self, live: tuple[Scene, Wire]
    ) -> None:
        scene, wire = live
        async with self.listed(wire, "?status=active&limit=1") as reader:
            first = orjson.loads((await reader.event())["data"])
            assert [row["conversationId"] for row in first["conversations"]] == ["conv-1"]
            await scene.end()
            assert orjson.loads((await reader.event())["data"]) == {"conversations": [], "gone": ["conv-1"]}

    @pytest.mark.parametrize(
        "accept",
        [
            "text/event-stream;q=0",
            "application/json, text/event-stream;q=0.1",
            "text/event-stream; q=0.5, application/json; q=0.6",
            "text/event-streams",
        ],
    )
    async def test_who_prefers_json_gets_it(self, live: tuple[Scene, Wire], accept: str) -> None:  # F36
        reply = await live[0].http.get(f"{self.PATH}?cursor=W251bGwsbnVsbF0=", headers={"Accept": accept})
        assert (reply.status_code, reply.json()["cut"]) == (200, False)

    @pytest.mark.parametrize(
        "accept", ["Text/Event-Stream", "application/json, text/event-stream", "text/event-stream, */*;q=0.1"]
    )
    async def test_who_asks_for_events_no_less_follows(
        self, live: tuple[Scene, Wire], accept: str
    ) -> None:  # F36
        reply = await live[0].http.get(f"{self.PATH}?cursor=W251bGwsbnVsbF0=", headers={"Accept": accept})
        assert "is followed" in reply.json()["detail"]

    async def test_a_list_counts_as_a_stream_and_takes_no_cursor(self, live: tuple[Scene, Wire]) -> None:
        scene, wire = live
        async with self.listed(wire) as one, self.listed(wire) as other:
            await one.event(), await other.event()
            async with self.listed(wire) as third:
                assert third.response.status_code == 503
        reply = await scene.http.get(f"{self.PATH}?cursor=x", headers={"Accept": "text/event-stream"})
        assert (reply.status_code, reply.json()["code"]) == (422, "cursor_invalid")


class TestBounds:
    async def test_there_are_so_many_at_once_and_who_goes_makes_room(self, live: tuple[Scene, Wire]) -> None:
        scene, wire = live
        async with followed(wire) as first, followed(wire) as second:
            assert [await each.seqs(1) for each in (first, second)] == [[1], [1]]
            assert is_open(scene) == 2
            async with followed(wire) as third:
                problem = orjson.loads(await third.response.aread())
                assert (third.response.status_code, problem["code"]) == (503, "streams_full")
                assert third.response.headers["retry-after"] == "5"
            reply = await scene.http.get("/v1/conversations/nobody/stream")
            assert reply.status_code == 503, "nothing is read for who finds no room"
        await until(lambda: is_open(scene) == 0)
        async with followed(wire) as again:
            assert await again.seqs(1) == [1]

    async def test_a_client_that_takes_nothing_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams_module, "TAKEN_WITHIN_S", 0.05)
        read, freed = list[int](), list[str]()

        async def entries() -> AsyncGenerator[Followed]:
            try:
                while True:
                    read.append(len(read))
                    yield Followed([cast("JournalRow", {"seq": len(read)})])
            finally:
                freed.append("followed")

        async def never() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message.get("body", b"").startswith(b"id: 3"):
                await never()

        opened = ExitStack()
        opened.callback(freed.append, "room")
        with structlog.testing.capture_logs() as logged:
            async with asyncio.timeout(WITHIN_S):
                stream = streams_module.EventStream(entries(), opened)
                await stream({"type": "http"}, never, send)
        assert (len(read), sorted(freed)) == (3, ["followed", "room"]), "no more was read than was taken"
        assert [(line["event"], line["reason"], line["entries"]) for line in logged] == [
            ("stream_ended", "not_taken", 3)
        ]

    @pytest.mark.parametrize(
        ("path", "headers", "status", "code"),
        [
            ("nobody/stream", {}, 404, "conversation_unknown"),
            ("conv-1/stream?after=x", {}, 422, "after_invalid"),
            ("conv-1/stream", {"last-event-id": "x"}, 422, "last_event_id_invalid"),
        ],
    )
    async def test_what_cannot_be_followed_is_refused(
        self, live: tuple[Scene, Wire], path: str, headers: dict[str, str], status: int, code: str
    ) -> None:
        refused: Any = await live[0].http.get(f"/v1/conversations/{path}", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (status, code)

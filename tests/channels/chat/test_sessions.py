"""Sessions over connections: one a user, resumed by number, cancelled, limited."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from adapters.models.scripted import Says, Stalls
from api.auth import Keyring
from channels.chat import sessions
from flow_engine.errors import CallTheOperator
from flow_engine.ports.chat import FRAMES_KEPT, KEPT_S, LEASE_S, SessionRef
from flow_engine.ports.models import LLMRequest
from memory.chat_in_process import InProcessChat
from tests.channels.chat.harness import ORDERS, WEATHER, WITHIN_S, Chat, Client, running_chat
from tests.channels.chat.test_agents_table import KEYS, key

pytestmark = pytest.mark.anyio

QUESTION = "What is the weather in Rome?"


async def closed(client: Client) -> int:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await client.next()
    code = client.socket.close_code
    assert code is not None
    return code


async def test_a_client_that_comes_back_gets_exactly_what_it_missed(tmp_path: Path) -> None:  # C12
    text = "It is sunny in Rome, and it will stay so until the weekend at least."
    async with running_chat(tmp_path, [Stalls(0.2, Says(text))]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content=QUESTION)
        async with chat.client(session=client.session, after=0) as back:
            final = await back.final("m-1")
            assert back.text("m-1") == text
            assert back.numbers == list(range(1, final["seq"] + 1))
        async with chat.client(session=client.session, after=2) as again:
            await again.until(lambda frame: frame["seq"] == final["seq"])
            assert again.numbers == list(range(3, final["seq"] + 1))
        async with chat.client(session=client.session, after=None) as nothing:
            assert nothing.frames[0]["content"]["last_seq"] == final["seq"]
            await nothing.say("m-2", QUESTION)
            assert nothing.numbers[0] == final["seq"] + 1


async def test_where_the_log_does_not_reach_back_the_history_comes_instead(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
        ref, frame = SessionRef("default", client.session), b'{"type":"state","id":"m-2","final":false}'
        last = [await chat.sessions.store.append(ref, frame, None) for _ in range(FRAMES_KEPT)][-1]
        async with chat.client(session=client.session, after=0) as back:
            gap = await back.next()
            assert (gap["type"], gap["seq"], gap["content"]["event"]) == ("state", None, "gap")
            assert gap["content"]["history"][0]["content"] == QUESTION
            first = await back.next()
            assert first["seq"] == gap["content"]["oldest_seq"] == last - 999
            await back.until(lambda frame: frame["seq"] == last)
        async with chat.client(session=client.session, after=last - FRAMES_KEPT) as whole:
            await whole.until(lambda frame: frame["seq"] == last)
            assert whole.numbers == list(range(last - 999, last + 1))


async def test_a_newer_connection_of_the_user_takes_over(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)
        async with chat.client() as older, chat.client(user="other") as other, chat.client() as newer:
            frame = await older.next()
            assert (frame["seq"], frame["content"]["event"]) == (None, "taken_over")
            assert await closed(older) == 4001
            assert (await newer.say("m-1", QUESTION))["state"] == "done"
            assert (await other.say("m-1", QUESTION))["state"] == "done"


class SlowToNumber(InProcessChat):
    """The first connection has its number, and hears of it late."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def arrive(self, tenant_id: str, user: str) -> int:
        number = await super().arrive(tenant_id, user)
        if number == 1:
            await self.go_on.wait()
        return number


async def test_a_connection_that_was_overtaken_while_it_arrived_is_closed_too(tmp_path: Path) -> None:  # C12
    store = SlowToNumber()
    async with running_chat(tmp_path, shared=(store, store)) as chat, connect(chat.url, proxy=None) as older:
        client = Client(older)
        await client.send(type="hello", user="u1", session=None, after=None)
        while not store._arrivals:
            await asyncio.sleep(0.01)
        async with chat.client() as newer:
            store.go_on.set()
            await client.until(lambda frame: frame["content"]["event"] == "taken_over")
            assert await closed(client) == 4001
            await newer.send(type="cancel", id="nothing")
            assert newer.socket.close_code is None


async def test_of_twenty_connections_of_one_user_the_newest_is_left(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)

        async def fight(number: int) -> bool:
            async with chat.client() as client:
                try:
                    return (await client.say(f"m-{number}", QUESTION))["final"] and number < 0
                except ConnectionClosed:
                    return client.socket.close_code == 4001

        outcomes = await asyncio.gather(*(fight(number) for number in range(20)))
        assert not all(outcomes)
        async with chat.client() as client:
            assert (await client.say("last", QUESTION))["state"] == "done"


async def test_a_cancelled_answer_ends_at_once(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path, [Stalls(120, Says("late")), Says("Sunny.")]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            await client.send(type="message", id="m-2", content=QUESTION)
            while not chat.model.requests:
                await asyncio.sleep(0.01)
            await client.send(type="cancel", id="m-1")
            async with asyncio.timeout(30):
                final = await client.final("m-1")
            assert (final["state"], final["content"]["event"]) == ("refused", "cancelled")
            assert (await client.final("m-2"))["state"] == "done"
            await client.send(type="cancel", id="m-1")
            assert (await client.say("m-3", QUESTION))["state"] == "done"
            assert [run["status"] for run in await chat.runs(client.session)][-1] == "completed"


async def test_a_waiting_message_is_cancelled_too(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path, [Stalls(0.3, Says("Sunny."))]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            await client.send(type="message", id="m-2", content=QUESTION)
            await client.send(type="cancel", id="m-2")
            assert (await client.final("m-2"))["state"] == "refused"
            assert (await client.final("m-1"))["state"] == "done"
            assert len(chat.model.requests) == 1


async def test_a_waiting_message_is_cancelled_before_the_answer_ahead_of_it_is_whole(
    tmp_path: Path,
) -> None:  # C12
    async with running_chat(tmp_path, [Stalls(120, Says("late")), Says("Sunny.")]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            for number in (1, 2, 3):
                await client.send(type="message", id=f"m-{number}", content=QUESTION)
            while not chat.model.requests:
                await asyncio.sleep(0.01)
            for message_id in ("m-2", "m-2", "nothing"):
                await client.send(type="cancel", id=message_id)
            final = await client.final("m-2")
            assert (final["state"], final["content"]["event"]) == ("refused", "cancelled")
            await client.send(type="cancel", id="m-1")
            assert (await client.final("m-1"))["content"]["event"] == "cancelled"
            assert (await client.final("m-3"))["state"] == "done"
            assert [f["id"] for f in client.frames if f["final"]] == ["m-2", "m-1", "m-3"]
            assert len(chat.model.requests) == 2


async def test_a_client_that_sends_and_never_reads_is_let_go(tmp_path: Path) -> None:  # C12
    upgrade = f"GET /v1/chat/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n"
    hello = b'{"type": "hello", "user": "u1", "session": null, "after": null}'
    async with running_chat(tmp_path) as chat:
        reader, writer = await asyncio.open_connection("127.0.0.1", chat.port, limit=1_024)
        writer.write(upgrade.encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello)
        with contextlib.suppress(ConnectionError):
            for _ in range(50):  # the sockets take some 20,000 answers
                writer.write(b"\x81\x82\0\0\0\0{}" * 1_000)
                await writer.drain()
                await asyncio.sleep(0.1)
        queues = [each for each in gc.get_objects() if type(each) is asyncio.Queue]
        assert all(each.qsize() < 5_000 for each in cast("list[asyncio.Queue[object]]", queues))
        writer.transport.abort()


def strings_of(objects: Sequence[object]) -> Iterator[str]:
    """The texts in the sets there are."""
    for each in objects:
        if type(each) is set:
            yield from (member for member in cast("set[object]", each) if isinstance(member, str))


async def test_cancellations_of_nothing_take_no_room(tmp_path: Path) -> None:  # C12
    """A client may send as many as it likes while an answer is made."""
    async with running_chat(tmp_path, [Stalls(120, Says("late"))]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            for number in (1, 2):
                await client.send(type="message", id=f"m-{number}", content=QUESTION)
            while not chat.model.requests:
                await asyncio.sleep(0.01)
            kept = f"nothing-{'x' * 100}"
            for number in range(2_000):
                await client.send(type="cancel", id=f"{kept}-{number}")
            await client.send(type="confirm", call="x", decision="no")
            await client.send(type="hello", user="u1", session=None, after=None)  # answered after all of it
            await client.until(lambda frame: frame["type"] == "error")
            gc.collect()
            assert sum(kept in each for each in strings_of(gc.get_objects())) < 500
            await client.send(type="cancel", id="m-2")
            assert (await client.final("m-2"))["content"]["event"] == "cancelled"
            await client.send(type="cancel", id="m-1")


async def test_an_id_is_answered_once_and_a_line_has_an_end(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path, [Stalls(0.3, Says("Sunny.")), Says("Sunny.")]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            for number in (1, 1, 2, 3, 4, 5, 6, 7):
                await client.send(type="message", id=f"m-{number}", content=QUESTION)
            await client.final("m-6")
            errors = [f for f in client.frames if f["type"] == "error"]
            assert [(f["id"], f["seq"], f["content"]["code"]) for f in errors] == [
                ("m-1", None, "duplicate"),
                ("m-7", None, "busy"),
            ]
            assert len(chat.model.requests) == 6


@pytest.mark.parametrize(
    ("frame", "pointer"),
    [
        ({"type": "shout"}, "/type"),
        ({"type": "message", "content": "x"}, "/id"),
        ({"type": "message", "id": "m", "content": " "}, "/content"),
        ({"type": "message", "id": "m", "content": "x" * 8_001}, "/content"),
        ({"type": "confirm", "call": "c", "decision": "perhaps"}, "/decision"),
        ({"type": "cancel", "id": "m", "now": True}, "/now"),
        ("{", ""),
        ([], ""),
    ],
)
async def test_a_bad_frame_is_told_and_the_connection_lives(
    tmp_path: Path, frame: Any, pointer: str
) -> None:  # C13
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.socket.send(frame if isinstance(frame, str) else orjson.dumps(frame).decode())
            error = await client.next()
            assert (error["type"], error["seq"], error["content"]["pointer"]) == ("error", None, pointer)
            assert (await client.say("m-1", QUESTION))["state"] == "done"


async def test_frames_too_long_or_binary_close_the_connection(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path) as chat:
        async with chat.client() as client:
            await client.socket.send("x" * 70_000)
            assert await closed(client) == 1009
        async with chat.client() as client:
            await client.socket.send(b"{}")
            assert await closed(client) == 1003


async def test_a_session_is_its_users_alone(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path) as chat, chat.client() as client:
        for user, session in (("other", client.session), ("u9", "s-unknown")):
            async with chat.client(user=user, session=session) as stranger:
                assert stranger.frames[0]["content"]["code"] == "session_unknown"
                assert await closed(stranger) == 4004


async def test_a_token_is_for_one_user_and_for_a_time(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path, authenticator=Keyring.parse(KEYS)) as chat:
        made = await chat.http.post("/v1/chat/tokens", json={"user": "u1", "ttl_s": 60}, headers=key("chat"))
        assert (made.status_code, set(made.json())) == (201, {"token", "expires_at"})
        query = f"?token={made.json()['token']}"
        async with chat.client(query=query) as client:
            assert client.frames[0]["content"]["event"] == "welcome"
        async with chat.client(user="u2", query=query) as other:
            assert other.frames[0]["type"] == "error"
            assert await closed(other) == 4403
        for wrong in ("", "?token=x", "?token=chat-key-0123456789", f"{query}x"):
            with pytest.raises(InvalidStatus, match="403"):
                async with connect(chat.url + wrong, proxy=None):
                    pass
        async with chat.client(headers=key("chat")) as client:
            assert client.frames[0]["content"]["event"] == "welcome"
        refused = await chat.http.post("/v1/chat/tokens", json={"user": "u1"}, headers=key("designer"))
        assert refused.status_code == 403


async def test_an_ended_session_is_ended_once_and_says_so(tmp_path: Path) -> None:  # C12
    async with running_chat(tmp_path, [Stalls(5)]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            await asyncio.sleep(0.05)
            for _ in range(2):
                ended = await chat.http.post(f"/v1/chat/sessions/{client.session}/end")
                assert (ended.status_code, ended.json()["ended"]) == (200, True)
            assert (await client.final("m-1"))["state"] == "refused"
            await client.say("m-2", QUESTION)
            assert client.of("m-2", "error")[0]["content"]["code"] == "session_ended"
        assert (await chat.http.post("/v1/chat/sessions/s-none/end")).status_code == 404


class CountsSweeps(InProcessChat):
    """`now` is its clock; `swept` counts the looks for idle sessions that are done with."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        super().__init__(monotonic=lambda: self.now)

    async def idle(self, for_s: float) -> Sequence[SessionRef]:
        self.looks += 1
        return await super().idle(for_s)

    async def swept(self) -> None:
        """After a whole sweep that began from now on."""
        looks = self.looks
        async with asyncio.timeout(WITHIN_S):
            while self.looks < looks + 2:
                await asyncio.sleep(0.01)


async def test_a_session_that_fell_silent_is_ended_once_and_then_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12
    monkeypatch.setattr(sessions, "SWEEP_S", 0.01)
    store, idle_s = CountsSweeps(), 1_800.0
    async with running_chat(tmp_path, shared=(store, store), chat_idle_s=idle_s) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            ref = SessionRef("default", client.session)
        store.now = idle_s
        async with asyncio.timeout(WITHIN_S):
            while not (await chat.sessions.state(ref)).ended:
                await asyncio.sleep(0.01)
        for _ in range(3):
            store.now += idle_s
            await store.swept()
        store.now = idle_s + KEPT_S + 1.0
        await chat.sessions.create("default", "u2", None)
        assert await store.load(ref) is None


class NamesSlowly(CountsSweeps):
    """`named` is set when a session has been named as idle, which the store does once in LEASE_S."""

    def __init__(self) -> None:
        super().__init__()
        self.named = asyncio.Event()

    async def idle(self, for_s: float) -> Sequence[SessionRef]:
        if found := await super().idle(for_s):
            self.named.set()
            await asyncio.sleep(0.05)
        return found


async def test_a_session_that_a_stopping_replica_was_to_end_is_ended_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12
    monkeypatch.setattr(sessions, "SWEEP_S", 3_600.0)  # the chat's own sweeper stays out of this
    store, idle_s = NamesSlowly(), 1_800.0
    async with running_chat(tmp_path, shared=(store, store), chat_idle_s=idle_s) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            ref = SessionRef("default", client.session)
        monkeypatch.setattr(sessions, "SWEEP_S", 0.01)
        async with chat.sessions.running():
            store.now = idle_s
            await store.named.wait()
        store.now += LEASE_S
        async with chat.sessions.running(), asyncio.timeout(WITHIN_S):
            while not (await chat.sessions.state(ref)).ended:
                await asyncio.sleep(0.01)


async def test_a_session_that_a_killed_replica_was_to_end_is_ended_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12
    monkeypatch.setattr(sessions, "SWEEP_S", 3_600.0)  # the chat's own sweeper stays out of this
    store, idle_s = CountsSweeps(), 1_800.0
    async with running_chat(tmp_path, shared=(store, store), chat_idle_s=idle_s) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            ref = SessionRef("default", client.session)
        store.now = idle_s
        assert await store.idle(idle_s) == [ref]  # by one that is killed before it has put anything
        store.now += LEASE_S
        monkeypatch.setattr(sessions, "SWEEP_S", 0.01)
        async with chat.sessions.running(), asyncio.timeout(WITHIN_S):
            while not (await chat.sessions.state(ref)).ended:
                await asyncio.sleep(0.01)


async def test_the_client_of_a_forgotten_session_is_told_so(tmp_path: Path) -> None:  # C12
    """A page that was left open overnight: its messages were put off for ever, and the page heard nothing."""
    store = CountsSweeps()
    async with running_chat(tmp_path, shared=(store, store), chat_idle_s=2 * KEPT_S) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            store.now = KEPT_S + 1.0
            await chat.sessions.create("default", "u2", None)
            await client.send(type="message", id="m-2", content=QUESTION)
            told = await client.next()
            assert (told["type"], told["content"]["code"]) == ("error", "session_unknown")
            assert await closed(client) == 4004
        assert await store.abandoned() == []


class RefusesOnce(CountsSweeps):
    """As a Redis whose user lacks a permission for a while."""

    async def abandoned(self) -> Sequence[SessionRef]:
        if self.looks == 0:
            self.looks = 1
            raise CallTheOperator("memory_refused", "Redis' user lacks permission for a command")
        return await super().abandoned()


async def test_sessions_are_swept_again_once_redis_refuses_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12, F44: one refusal ended the sweeping
    monkeypatch.setattr(sessions, "SWEEP_S", 0.01)
    store = RefusesOnce()
    with capture_logs() as logged:
        async with running_chat(tmp_path, shared=(store, store)):
            await store.swept()
    assert [each["detail"] for each in logged if each["event"] == "sessions_not_swept"] == [
        "Redis' user lacks permission for a command"
    ]
    assert "sessions_swept_again" in [each["event"] for each in logged]  # F46


@pytest.mark.parametrize("state", [None, b"{}"], ids=["forgotten", "unreadable"])
async def test_a_session_that_cannot_be_read_any_more_is_left_alone_and_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: bytes | None
) -> None:  # C12
    monkeypatch.setattr(sessions, "SWEEP_S", 0.01)
    store, idle_s = CountsSweeps(), 1_800.0
    async with running_chat(tmp_path, shared=(store, store), chat_idle_s=idle_s) as chat:
        await chat.add(WEATHER)
        refs: list[SessionRef] = []
        for user in ("u1", "u2", "u3"):
            async with chat.client(user=user) as client:
                await client.say("m-1", QUESTION)
                refs.append(SessionRef("default", client.session))
        forgotten = refs.pop(1)
        _refs(chat)[forgotten].state = state
        store.now = idle_s
        async with asyncio.timeout(WITHIN_S):
            while not all([(await chat.sessions.state(ref)).ended for ref in refs]):
                await asyncio.sleep(0.01)
        await store.swept()
        assert await store.waiting(forgotten) == ()


async def test_an_answer_goes_on_by_the_table_as_it_was(tmp_path: Path) -> None:  # C5
    async with running_chat(tmp_path, [Stalls(0.3, Says("Sunny."))]) as chat:
        await chat.add(WEATHER, ORDERS)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            await asyncio.sleep(0.1)
            assert (await chat.http.delete("/v1/ai-agents/weather_agent")).status_code == 204
            final = await client.final("m-1")
            assert (final["state"], client.text("m-1")) == ("done", "Sunny.")
            assert (await client.say("m-2", QUESTION))["state"] == "refused"


async def test_an_agent_made_again_under_a_name_is_the_new_one(tmp_path: Path) -> None:  # C1, C5
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            await chat.http.delete("/v1/ai-agents/weather_agent")
            await chat.add({**WEATHER, "task": "Tell it as a poem."})
            await client.say("m-2", QUESTION)
            assert "Tell it as a poem." in chat.model.requests[-1].messages[0].content
            await chat.http.delete("/v1/ai-agents/weather_agent")
            await chat.add({**WEATHER, "enabled": False})
            assert (await client.say("m-3", QUESTION))["state"] == "refused"


async def test_the_history_is_the_context_of_what_follows(tmp_path: Path) -> None:  # C14
    def script(request: LLMRequest) -> Says:
        return Says(f"Answer {len(request.messages)}")

    async with running_chat(tmp_path, script) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            await client.say("m-2", "Will it rain tomorrow in Rome?")
            state = await chat.sessions.state(next(iter(_refs(chat))))
            assert [turn.role for turn in state.history] == ["user", "assistant"] * 2
            assert (state.active_agent, state.last_intent) == ("weather_agent", "weather_agent")
            assert chat.model.requests[-1].messages[1].content == QUESTION


def _refs(chat: Chat) -> Any:
    store = chat.sessions.store
    assert isinstance(store, InProcessChat)
    kept: Callable[[], Any] = lambda: store._sessions  # noqa: E731
    return kept()

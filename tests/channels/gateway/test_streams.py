"""Streams: server-sent events by the book, honest ends, heartbeats, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.models.fake_http import FakeServer, Received
from channels.gateway.upstreams import OpenAiUpstream
from channels.gateway.wire import EventReader, Part, frame
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.gateway.fake_ollama import FakeOllama, OllamaAnswer
from tests.channels.gateway.gateway_world import CHUNKS, HELLO, World, chunk, events_of, gateway, stream

pytestmark = pytest.mark.anyio

RECORDED = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.binary(min_size=1, max_size=6).filter(lambda b: b"\r" not in b)), st.data())
def test_events_are_the_same_however_they_are_cut(datas: list[bytes], data: st.DataObject) -> None:  # W9
    ending = data.draw(st.sampled_from([b"\n", b"\r", b"\r\n"]))
    wire = b"\xef\xbb\xbf: comment\n\n" + b"".join(frame(each) for each in datas)
    wire = wire.replace(b"\n", ending)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    reader, got = EventReader(), list[bytes]()
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        got += [event.data for event in reader.feed(wire[start:end])]
    assert got == datas


def raises_or_ends(content: bytes) -> bool:
    """Whether a client sees a clean end."""
    events = events_of(content)
    failed = [event for event in events if event != b"[DONE]" and "error" in orjson.loads(event)]
    assert not (failed and b"[DONE]" in events)
    return b"[DONE]" in events


async def test_a_stream_that_is_cut_at_any_byte_never_ends_cleanly(tmp_path: Path) -> None:  # W9
    at = 0

    def script(_: Received) -> Reply:
        return Reply([RECORDED[:at]], content_type="text/event-stream", cut=bool(at % 2))

    async with (
        ExactServer(script).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        for cut in range(len(RECORDED)):
            at = cut
            status, content = await world.quick(stream=True)
            if status == 200:
                assert not raises_or_ends(content)
                assert orjson.loads(events_of(content)[-1])["error"]["message"]
            else:
                assert (status, set(orjson.loads(content))) == (502, {"error"})
        at = len(RECORDED)
        assert raises_or_ends((await world.quick(stream=True))[1])


async def test_the_official_client_raises_on_a_cut_stream(tmp_path: Path) -> None:  # W9
    async with (
        ExactServer(lambda _: stream(*CHUNKS[:2], done=False)).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        chunks = await world.openai().chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        assert [(await anext(chunks)).choices[0].delta.content for _ in range(2)] == ["", "Hel"]
        with pytest.raises(openai.APIError, match="ended its answer"):
            await anext(chunks)


@pytest.mark.parametrize(
    "piece",
    [
        b'data: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n',
        b'event: error\ndata: {"message": "out of memory"}\n\n',
        b"data: {not json\n\ndata: [DONE]\n\n",
        b"data: [1]\n\ndata: [DONE]\n\n",
    ],
)
async def test_an_error_within_a_stream_is_its_last_event(piece: bytes, tmp_path: Path) -> None:  # W9
    reply = Reply([b"data: " + orjson.dumps(CHUNKS[1]) + b"\n\n", piece], content_type="text/event-stream")
    async with (
        ExactServer(lambda _: reply).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        first, last = await world.streamed()
        assert orjson.loads(first) == CHUNKS[1]
        error = orjson.loads(last)["error"]
        assert {"message", "type", "code"} <= set(error)
        assert ("memory" in error["message"]) == (b"memory" in piece)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("temperature", [0, 1])
async def test_a_bug_of_the_gateway_ends_a_stream_with_an_error(
    temperature: int, begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # W9
    async def broken(*_: Any) -> AsyncGenerator[Part]:
        if begun:
            yield Part(orjson.dumps(CHUNKS[1]), dict(CHUNKS[1]))
        raise RuntimeError("a bug")

    monkeypatch.setattr(OpenAiUpstream, "ask", broken)
    async with gateway(tmp_path, {"url": "http://127.0.0.1:9/v1"}) as world:
        reply = await world.chat(stream=True, temperature=temperature)
        events = events_of(reply.content) if begun else [b"", reply.content]
        assert (reply.status_code, len(events)) == (200 if begun else 500, 2)
        assert orjson.loads(events[-1])["error"]["type"] == "server_error"


async def test_comments_come_only_when_a_backend_is_silent(tmp_path: Path) -> None:  # W9
    slow = Reply(stream(*CHUNKS[:1]).pieces, content_type="text/event-stream", pause_s=0.16)
    async with (
        ExactServer(
            lambda got: slow if got.body["messages"][0]["content"] == "slow" else stream(*CHUNKS)
        ).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}, gateway_heartbeat_s=0.05) as world,
    ):
        quiet = (await world.chat(stream=True, messages=[{"role": "user", "content": "slow"}])).content
        assert quiet.startswith(b": ")
        assert events_of(quiet) == [orjson.dumps(CHUNKS[0]), b"[DONE]"]
        assert b": " not in (await world.chat(stream=True)).content.replace(b"data: ", b"")


async def test_a_failure_after_a_comment_is_an_error_event(tmp_path: Path) -> None:  # W9
    async with (
        ExactServer(
            lambda _: Reply([b"", b""], content_type="text/event-stream", pause_s=0.1)
        ).running() as s,
        gateway(tmp_path, {"url": f"{s.origin}/v1"}, gateway_heartbeat_s=0.05) as world,
    ):
        reply = await world.chat(stream=True)
        assert reply.status_code == 200
        assert "error" in orjson.loads(events_of(reply.content)[-1])


@asynccontextmanager
async def asking(world: World, **fields: Any) -> AsyncGenerator[asyncio.StreamReader]:
    """A client with a socket of its own, which it closes on leaving."""
    body = orjson.dumps({"model": "m", "messages": HELLO, **fields})
    host, port = world.origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: %b\r\n" % host.encode())
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    try:
        yield reader
    finally:
        writer.close()


@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_that_outlasts_a_gateway_that_stops_ends_with_an_error(
    streams: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # W9
    monkeypatch.setattr("service.gateway.ANSWERS_END_WITHIN_S", 0.1)
    first = b"data: " + orjson.dumps(CHUNKS[1]) + b"\n\n" if streams else b"{"
    async with (
        AsyncExitStack() as stays,
        ExactServer(lambda _: Reply([first, b""], pause_s=30)).running() as s,
    ):
        async with gateway(tmp_path, {"url": f"{s.origin}/v1"}) as world:
            reader = await stays.enter_async_context(asking(world, stream=streams))
            while not s.requests:
                await asyncio.sleep(0.002)
            head = await reader.readuntil(first) if streams else b""
        rest = head + await reader.read()
    assert rest.startswith(b"HTTP/1.1 200" if streams else b"HTTP/1.1 503")
    assert b'"code":"stopping"' in rest
    assert b"[DONE]" not in rest
    assert not [each for each in caplog.records if each.exc_info], "an end in order is no error"


async def noticed(server: FakeServer, at: float) -> float:
    """Seconds from `at` to when the backend saw its client go."""
    async with asyncio.timeout(30):
        while not server.left:
            await asyncio.sleep(0.002)
    return server.left.pop() - at


async def within(limit_s: float, round_s: Callable[[], Awaitable[float]]) -> bool:
    """Whether the best of five rounds is: the machine may be busy in some of them."""
    for _ in range(5):
        if await round_s() < limit_s:
            return True
    return False


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0}])
async def test_a_client_that_goes_away_cancels_the_call_in_200_ms(
    fields: Mapping[str, Any], begun: bool, tmp_path: Path
) -> None:  # W9
    events = [b"data: " + orjson.dumps(chunk({"content": "x"})) + b"\n\n"] * 400
    slow = Reply([b"", *events] if begun else [b"", b""], pause_s=0.02 if begun else 5)
    async with (
        ExactServer(lambda _: slow).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
        asking(world, stream=True),  # this one stays
    ):

        async def once() -> float:
            before = len(server.requests)
            async with asking(world, stream=True, **fields) as reader:
                while len(server.requests) == before:
                    await asyncio.sleep(0.002)
                if begun:
                    await reader.readuntil(b"data: ")
                await asyncio.sleep(0.02)
                assert server.left == []
            return await noticed(server, asyncio.get_running_loop().time())

        assert await within(0.2, once)
        await asyncio.sleep(0.1)
        assert server.left == []


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}])
async def test_a_plain_request_is_cancelled_within_a_second(
    fields: Mapping[str, Any], tmp_path: Path
) -> None:  # W9
    async with (
        ExactServer(lambda _: Reply([b"", b""], pause_s=5)).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):

        async def once() -> float:
            before = len(server.requests)
            async with asking(world, **fields):
                while len(server.requests) == before:
                    await asyncio.sleep(0.002)
            return await noticed(server, asyncio.get_running_loop().time())

        assert await within(1.0, once)


async def test_one_of_several_readers_leaves_and_the_others_get_it_all(tmp_path: Path) -> None:  # W7
    reply = Reply(stream(*CHUNKS).pieces, content_type="text/event-stream", pause_s=0.05)
    async with (
        ExactServer(lambda _: reply).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        asking = [asyncio.ensure_future(world.streamed(temperature=0)) for _ in range(3)]
        await asyncio.sleep(0.1)
        asking[0].cancel()
        assert [len(each) for each in await asyncio.gather(*asking[1:])] == [5, 5]
        assert (len(server.requests), server.left) == (1, [])


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}])
async def test_a_backend_is_not_read_faster_than_its_client_reads(
    fields: Mapping[str, Any], tmp_path: Path
) -> None:  # W9
    sent = 0
    big = b"data: " + orjson.dumps(chunk({"content": "x" * 60_000})) + b"\n\n"

    class Endless(ExactServer):
        async def answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            while True:
                writer.write(big)
                await writer.drain()
                sent += len(big)

    async with (
        Endless(lambda _: None).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
        world.http.stream(
            "POST", "/v1/chat/completions", json={"model": "m", "messages": [{}], "stream": True, **fields}
        ) as reply,
    ):
        assert reply.status_code == 200
        before = -1
        async with asyncio.timeout(30):
            while sent != before:  # until nothing moves any more
                before = sent
                await asyncio.sleep(0.2)
        assert 0 < sent < 30_000_000


async def test_an_ollama_that_is_cut_never_ends_cleanly(tmp_path: Path) -> None:  # W9
    model = FakeOllama([OllamaAnswer("Hello you", thinking="Hm", calls=[{"function": {"name": "f"}}])])
    async with model.running() as whole, gateway(tmp_path, {"url": whole.origin, "kind": "ollama"}) as world:
        assert (await world.streamed())[-1] == b"[DONE]"
    recorded = (
        b'{"message": {"role": "assistant", "content": "He"}, "done": false}\n'
        b'{"message": {"content": ""}, "done": true, "done_reason": "stop", "eval_count": 1}'
    )
    at = 0
    async with (
        ExactServer(lambda _: Reply([recorded[:at]], cut=bool(at % 2))).running() as server,
        gateway(tmp_path, {"url": server.origin, "kind": "ollama"}) as world,
    ):
        for cut in range(len(recorded)):
            at = cut
            status, content = await world.quick(stream=True)
            assert status == 502 or not raises_or_ends(content)
            assert cut % 5 or (await world.quick())[0] == 502

"""Replicas that are killed, clients that move and fight, models that misbehave, tables that change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from adapters.models.fake_openai import FakeOpenAI, Malformed, WireStep
from adapters.models.scripted import CallsTools, Says, Stalls
from flow_engine.ports.models import ToolCall
from tests.channels.chat.harness import ORDERS, WEATHER, Client, running_chat
from tests.redis_fixture import RedisServer

pytestmark = pytest.mark.anyio

QUESTION = "What is the weather in Rome?"
ROOT = Path(__file__).parents[3]
WEATHER_LOCAL = {**WEATHER, "model": "local:m"}


def chunk(content: str | None, finish: str | None = None) -> bytes:
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


@asynccontextmanager
async def slow_model(pieces: int, every_s: float) -> AsyncGenerator[str]:
    """The base URL of a server whose every answer is `0 1 2 …`, a number at a time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        try:
            for number in range(pieces):
                writer.write(chunk(f"{number} "))
                await writer.drain()
                await asyncio.sleep(every_s)
            writer.write(chunk(None, "stop") + b"data: [DONE]\n\n")
        except OSError:
            pass  # who asked has gone
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


@asynccontextmanager
async def replica(
    data_dir: Path, **environment: str
) -> AsyncGenerator[tuple[str, asyncio.subprocess.Process]]:
    """A process of `chat serve`, and where it is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "service.cli", "chat", "serve", "--port", "0"),
        cwd=ROOT,
        env={**os.environ, "FLOW_ENGINE_DATA_DIR": str(data_dir), **environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(120):
            while not (found := re.search(rb"http://([0-9.:]+)", await process.stderr.readline())):
                pass
        yield found[1].decode(), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def client_of(host: str, **hello: Any) -> AsyncGenerator[Client]:
    async with connect(f"ws://{host}/v1/chat/ws", proxy=None) as socket:
        client = Client(socket)
        await client.send(type="hello", user="mover", **{"session": None, "after": None, **hello})
        await client.next()
        yield client


def whole(frames: list[dict[str, Any]]) -> None:
    """What holds for the frames of every session: no gap, no double, one final frame for each answer."""
    numbers = [f["seq"] for f in frames if f["seq"] is not None]
    assert numbers == list(range(1, len(numbers) + 1))
    finals = [f["id"] for f in frames if f["final"]]
    assert len(finals) == len(set(finals))


@pytest.mark.long
async def test_a_killed_replicas_answer_ends_on_another(
    tmp_path: Path, redis_server: RedisServer
) -> None:  # C12
    async with slow_model(400, 0.05) as model_url, AsyncExitStack() as stack:
        shared = {
            "FLOW_ENGINE_REDIS_URL": redis_server.url,
            "FLOW_ENGINE_REDIS_UNSAFE": "true",
            "FLOW_ENGINE_LLM_MODEL": "",
            "OPENAI_BASE_URL": model_url,
        }
        (one, dying), (other, _) = await asyncio.gather(
            stack.enter_async_context(replica(tmp_path, **shared)),
            stack.enter_async_context(replica(tmp_path, **shared)),
        )
        async with httpx.AsyncClient(base_url=f"http://{one}") as http:
            assert (await http.post("/v1/ai-agents", json=WEATHER_LOCAL)).status_code == 201
        async with client_of(one) as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            for _ in range(3):
                await client.next()
            dying.send_signal(signal.SIGKILL)
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await client.next()
        last = client.numbers[-1]
        async with client_of(other, session=client.session, after=last) as back:
            async with asyncio.timeout(20):
                while not back.frames[-1]["final"]:
                    await back.next()
            whole([*client.frames, *back.frames])
            assert (back.frames[-1]["state"], back.of("m-1", "error")[0]["content"]["code"]) == (
                "refused",
                "interrupted",
            )
            text = client.text("m-1") + back.text("m-1")
            assert text == "".join(f"{number} " for number in range(len(text.split())))
            await back.send(type="message", id="m-1", content=QUESTION)
            assert (await back.next())["content"]["code"] == "duplicate"


async def test_a_client_moves_between_replicas_on_a_cluster(
    tmp_path: Path, redis_cluster: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:  # C12
    settings = {"redis_url": redis_cluster.url, "redis_unsafe": True, "redis_cluster": True}
    async with slow_model(20, 0.02) as model_url:
        monkeypatch.setenv("OPENAI_BASE_URL", model_url)
        async with (
            running_chat(tmp_path, on_wire=True, settings=settings) as one,
            running_chat(tmp_path, on_wire=True, settings=settings) as other,
        ):
            await one.add(WEATHER_LOCAL)
            async with one.client(user="clustered") as client:
                await client.send(type="message", id="m-1", content=QUESTION)
                await client.until(lambda f: f["type"] == "dialogue")
            last = client.numbers[-1]
            async with other.client(user="clustered", session=client.session, after=last) as back:
                assert (await back.final("m-1"))["state"] == "done"
            whole([*client.frames, *back.frames])
            assert client.text("m-1") + back.text("m-1") == "".join(f"{n} " for n in range(20))


async def test_of_twenty_clients_of_one_user_on_two_replicas_one_is_left(
    tmp_path: Path, redis_server: RedisServer
) -> None:  # C12
    settings = {"redis_url": redis_server.url, "redis_unsafe": True}
    before = asyncio.all_tasks()
    async with (
        running_chat(tmp_path, settings=settings) as one,
        running_chat(tmp_path, settings=settings) as other,
        AsyncExitStack() as stack,
    ):
        await one.add(WEATHER)
        while len((await other.http.get("/v1/ai-agents")).json()) < 3:  # live there within 2 s
            await asyncio.sleep(0.05)
        sockets = [
            await stack.enter_async_context(connect(chat.url, proxy=None)) for chat in (one, other) * 10
        ]
        hello = orjson.dumps({"type": "hello", "user": "many", "session": None, "after": None}).decode()
        await asyncio.gather(*(socket.send(hello) for socket in sockets))

        async def end_of(number: int) -> int:
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await sockets[number].recv()
            return sockets[number].close_code or 0

        ends = {number: asyncio.create_task(end_of(number)) for number in range(20)}
        async with asyncio.timeout(10):
            while sum(task.done() for task in ends.values()) < 19:
                await asyncio.sleep(0.02)
        (left,) = (number for number, task in ends.items() if not task.done())
        last = ends.pop(left)
        last.cancel()
        await asyncio.wait({last})
        assert {task.result() for task in ends.values()} == {4001}
        client = Client(sockets[left])
        assert (await client.say("m-1", QUESTION))["state"] == "done"
    await asyncio.sleep(0.1)
    assert not [task for task in asyncio.all_tasks() - before if "chat" in repr(task.get_coro())]


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (Malformed(chunk("It is ") + b"data: {not json\n\n"), "model_failed"),
        (Malformed(chunk("It is ")), "model_failed"),
        (CallsTools([ToolCall("c", "no_such_tool", {"a": 1})], "It is "), None),
    ],
    ids=["garbage in the stream", "an end without an end", "a stranger's tool"],
)
async def test_a_model_that_misbehaves_ends_its_answer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: WireStep, code: str | None
) -> None:  # C13
    steps: list[WireStep] = [step, Says("Sunny."), Says("Sunny.")]
    async with FakeOpenAI(steps).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        async with running_chat(tmp_path, on_wire=True, settings={"llm_timeout_s": 1.0}) as chat:
            await chat.add(WEATHER_LOCAL)
            async with chat.client() as client:
                final = await client.say("m-1", QUESTION)
                assert final["state"] == ("refused" if code else "done")
                assert [f["content"]["code"] for f in client.of("m-1", "error")] == ([code] if code else [])
                assert client.text("m-1").startswith("It is ")
                assert (await client.say("m-2", QUESTION))["state"] == "done"
                whole(client.frames)


async def test_a_model_that_stalls_in_its_answer_is_left_after_the_longest_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C13
    async with slow_model(5, 1.0) as model_url:
        monkeypatch.setenv("OPENAI_BASE_URL", model_url)
        for timeout_s, state in ((0.4, "refused"), (3.0, "done")):
            async with running_chat(tmp_path, on_wire=True, settings={"llm_timeout_s": timeout_s}) as chat:
                if state == "refused":
                    await chat.add(WEATHER_LOCAL)
                async with chat.client() as client:
                    assert (await client.say("m-1", QUESTION))["state"] == state
                    whole(client.frames)


@pytest.mark.parametrize("change", ["edited", "disabled", "deleted"])
async def test_a_change_in_the_middle_of_an_answer_counts_from_the_next_message(
    tmp_path: Path, change: str
) -> None:  # C1, C5
    async with running_chat(tmp_path, [Stalls(0.3, Says("Sunny.")), Says("Sunny.")]) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            while not chat.model.requests:
                await asyncio.sleep(0.01)
            path = "/v1/ai-agents/weather_agent"
            if change == "edited":
                await chat.http.patch(path, json={"task": "Tell the weather in rhymes."})
            elif change == "disabled":
                await chat.http.patch(path, json={"enabled": False})
            else:
                await chat.http.delete(path)
            assert ((await client.final("m-1"))["state"], client.text("m-1")) == ("done", "Sunny.")
            final = await client.say("m-2", QUESTION)
            assert final["state"] == ("done" if change == "edited" else "refused")
            whole(client.frames)
    prompts = [request.messages[0].content for request in chat.model.requests]
    assert ["rhymes" in prompt for prompt in prompts] == [False, True][: len(prompts)]


async def test_an_agent_whose_variable_is_gone_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C5, F43
    monkeypatch.setenv("FLOW_ENGINE_CHAT_TOOL_ENV", "CRM_TOKEN")
    monkeypatch.setenv("CRM_TOKEN", "secret")
    tool = {"url": "https://crm.example.com/find", "headers": {"X-Key": "${env:CRM_TOKEN}"}}
    async with running_chat(tmp_path) as chat:
        await chat.add(WEATHER)
        await chat.add({**ORDERS, "http_tools": {"find": tool}})
    monkeypatch.delenv("FLOW_ENGINE_CHAT_TOOL_ENV")
    async with running_chat(tmp_path) as chat, chat.client() as client:
        assert (await client.say("m-1", QUESTION))["state"] == "done"
        routed = await chat.http.post("/v1/chat/route", json={"text": ORDERS["examples"][0]})
        assert "order_agent" not in [each["agent"] for each in routed.json()["candidates"]]

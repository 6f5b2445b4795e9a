"""A config that changes while its agent runs: nobody is cut off, nobody hears a busy tone (V13)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.http_door import listen
from channels.http_tools.body_builders import default_builders
from channels.voice.config.loader import load_config
from channels.voice.server import call_server
from channels.voice.server.serving import server_of
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Say, Script
from channels.voice.testing.sockets import eventually
from service.voice import VoiceAgent, voice_agent
from tests.channels.voice.business_server import BusinessServer, business_server
from tests.channels.voice.leaks import nothing_left
from tests.channels.voice.served_agent import simple_config
from tests.channels.voice.server.front_desk import secret, voice_settings

pytestmark = pytest.mark.anyio

SCRIPT = Script.of(Say("Hello", 200), Say("Yes", 200))


def instructed(text: str, **more: Any) -> dict[str, Any]:
    config = simple_config(**more)
    config["session"]["instructions"] = text
    config["lifecycle"]["on_end"]["body"] = {"by": text}
    return config


@dataclass
class Changing:
    """An agent whose config is a file that the test rewrites."""

    file: Path
    agent: VoiceAgent
    http: httpx.AsyncClient
    line_url: str

    async def reload(self, config: dict[str, Any]) -> httpx.Response:
        self.file.write_text(json.dumps(config))
        return await self.http.post("/reload")

    async def config(self) -> str:
        return (await self.http.get("/healthz")).json()["config"]


@asynccontextmanager
async def changing(tmp_path: Path, business: BusinessServer, model_url: str) -> AsyncGenerator[Changing]:
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(instructed("Old.")))
    settings = voice_settings(realtime_url=model_url, openai_api_key=secret("sk"))
    names = tuple(default_builders(lambda: pytest.fail("no builder is asked")))

    async with (
        nothing_left(),
        voice_agent(settings, lambda: load_config(file, builders=names, base_url=business.url)) as agent,
    ):
        listening = listen("127.0.0.1", 0)
        port = listening.getsockname()[1]
        server = server_of(agent.app)
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5) as http:
            yield Changing(file, agent, http, f"ws://127.0.0.1:{port}/media-stream")
        await agent.answering.close()
        server.should_exit = True
        await serving


async def test_calls_keep_the_config_that_they_began_with_and_new_ones_have_the_new_one(  # voice-smaller
    tmp_path: Path,
) -> None:
    async with (
        FakeRealtime(SCRIPT) as model,
        business_server() as business,
        changing(tmp_path, business, model.url) as desk,
    ):
        before = await desk.config()
        first, second = FakeTwilioCall(desk.line_url), FakeTwilioCall(desk.line_url)
        async with first:
            await eventually(lambda: first.playout.heard != [])
            reply = await desk.reload(instructed("New."))
            assert (reply.status_code, reply.json()["liveCalls"]) == (200, 1)
            assert reply.json()["config"] == await desk.config() != before
            async with second:
                await eventually(lambda: second.playout.heard != [])
                updates = [
                    (await model.session(n)).received("session.update")[0].fields["session"] for n in (0, 1)
                ]
                assert [each["instructions"] for each in updates] == ["Old.", "New."]  # type: ignore[index]
                assert first.socket.is_open
                await second.hang_up()
            await eventually(lambda: business.count("/end") == 1)
            await first.hang_up()
        await eventually(lambda: business.count("/end") == 2)
        assert [body for _, path, body in business.asked if path == "/end"] == [
            {"by": "New."},
            {"by": "Old."},
        ]


async def test_a_config_with_errors_is_refused_and_calls_have_the_old_one(tmp_path: Path) -> None:  # V1, V13
    async with (
        FakeRealtime(SCRIPT) as model,
        business_server() as business,
        changing(tmp_path, business, model.url) as desk,
    ):
        before = await desk.config()
        reply = await desk.reload(instructed("New.", openai={"vad": {"threshold": "loud"}}, greting={}))
        assert (reply.status_code, reply.json()["code"]) == (422, "config_refused")
        assert "/openai/vad/threshold" in reply.json()["detail"]
        errors = {error["pointer"]: error for error in reply.json()["errors"]}
        assert sorted(errors) == ["/greting", "/openai/vad/threshold"]
        assert all(set(error) == {"pointer", "code", "message"} for error in errors.values())
        assert errors["/greting"]["code"] == "unknown_property"
        assert "'greeting'" in errors["/greting"]["message"]
        assert await desk.config() == before
        async with FakeTwilioCall(desk.line_url) as call:
            await eventually(lambda: call.playout.heard != [])


async def test_an_address_that_cannot_be_called_is_a_mistake_of_the_config(tmp_path: Path) -> None:  # V1
    flow = {"mode": "flow", "engine_url": "http://10.0.0.300:3000", "version": "v"}
    async with business_server() as business, changing(tmp_path, business, "ws://127.0.0.1:9") as desk:
        reply = await desk.reload({**simple_config(), "session": flow})
        assert (reply.status_code, reply.json()["code"]) == (422, "config_refused")
        assert [error["pointer"] for error in reply.json()["errors"]] == ["/session/engine_url"]


async def test_what_came_of_an_old_call_is_known_for_a_while(  # 20, voice-smaller
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_server, "RETIRED_S", 0.3)
    async with business_server() as business, changing(tmp_path, business, "ws://127.0.0.1:9") as desk:
        call = FakeTwilioCall(desk.line_url)
        async with call:
            await desk.reload(instructed("New."))
            await eventually(lambda: not call.socket.is_open)
        ended = {"CallSid": call.call_sid}
        assert "<Say" in (await desk.http.post("/stream-ended", data=ended)).text
        await asyncio.sleep(0.6)
        assert "<Hangup" in (await desk.http.post("/stream-ended", data=ended)).text


async def ended_after_a_reload(desk: Changing, business: BusinessServer) -> None:
    """An old call's end, which the business does not take."""
    business.troubles["/end"] = "500"
    async with FakeTwilioCall(desk.line_url) as call:
        await eventually(lambda: call.playout.heard != [])
        await desk.reload(instructed("New."))
        await call.hang_up()
    await eventually(lambda: business.count("/end") == 1)


async def test_the_end_of_an_old_call_is_sent_until_the_business_has_answered(  # V5, V13
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_server, "RETIRED_S", 0.0)
    async with (
        FakeRealtime(SCRIPT) as model,
        business_server() as business,
        changing(tmp_path, business, model.url) as desk,
    ):
        await ended_after_a_reload(desk, business)
        await eventually(lambda: business.count("/end") == 3)  # a second and two seconds later
        del business.troubles["/end"]
        await eventually(lambda: business.count("/end") == 4)
        assert len({key for path, key in business.keys if path == "/end"}) == 1


async def test_a_process_that_ends_sends_the_end_of_an_old_call_once_more(  # V5, V13
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_server, "RETIRED_S", 0.0)
    async with FakeRealtime(SCRIPT) as model, business_server() as business:
        async with changing(tmp_path, business, model.url) as desk:
            await ended_after_a_reload(desk, business)
            await eventually(lambda: business.count("/end") == 2)
            del business.troubles["/end"]
        assert business.count("/end") == 3


async def test_only_this_machine_may_reload(tmp_path: Path) -> None:  # V13
    async with business_server() as business, changing(tmp_path, business, "ws://127.0.0.1:9") as desk:
        reply = await desk.http.post("/reload", headers={"X-Forwarded-For": "203.0.113.9"})
        assert (reply.status_code, reply.json()["code"]) == (403, "not_local")

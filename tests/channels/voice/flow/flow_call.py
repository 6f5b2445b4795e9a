"""One call through a flow: the real engine in process, scripted MCP servers, recorded controls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import orjson

from channels.engine_client.client import EngineClient, FlowChoice
from channels.engine_client.fake_mcp import ScriptedMcp, ScriptedTool
from channels.engine_client.mcp_tools import McpTool
from channels.voice.call.ports import Caller, Ending, EndReason, SessionSettings, Turn
from channels.voice.flow.call_handler import FlowCallHandler
from channels.voice.flow.engine_sync import MemoryNotices
from channels.voice.flow.task_context import FlowStart
from flow_engine.values import JsonValue
from flows.samples import load_samples
from tests.api.harness import Scene, open_scene
from tests.channels.engine_client.engine_doubles import client_of
from tests.channels.voice.recording_doubles import RecordingControls
from tests.flow_engine.documents.samples import JsonObject

AT = datetime(2026, 1, 15, 9, 31, tzinfo=UTC)
CALL_ID = "call-1"
CATALOGUE = "https://mcp.example.com/catalogo"
AGENDA = "https://mcp.example.com/agenda"
OPERATOR = "+390612340000"
BASE = SessionSettings(instructions="", model="gpt-realtime", voice="cedar", language="fr", silence_s=99.0)
NOT_READ_ALONG = [{"name": "convMiner", "enabled": False}]


def health_booking(**changes: Any) -> JsonObject:
    """The sample, whose dialogue nobody reads along."""
    (sample,) = (sample for sample in load_samples() if sample.flow_id == "health-booking")
    return {**orjson.loads(sample.document), "aiHelpers": NOT_READ_ALONG, **changes}


def scripted(
    name: str, answer: Callable[[Mapping[str, object]], JsonValue], *required: str, **properties: Any
) -> ScriptedTool:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ScriptedTool(McpTool(name, f"Does {name}", schema), answer)


@dataclass
class FlowCall:
    scene: Scene
    handler: FlowCallHandler
    controls: RecordingControls
    servers: ScriptedMcp
    requests: list[str]
    """The paths of all requests to the engine that were answered, oldest first."""

    async def opened(self) -> SessionSettings:
        settings = await self.handler.open()
        assert isinstance(settings, SessionSettings), settings
        self.controls.settings = settings
        return settings

    async def tool(self, name: str, **arguments: Any) -> Any:
        return await self.handler.run_tool(name, json.dumps(arguments))

    async def user(self, text: str) -> None:
        await self.handler.notice(Turn("user", text, AT))

    async def agent(self, text: str) -> None:
        await self.handler.notice(Turn("assistant", text, AT))

    async def over(self, reason: EndReason = "caller_hung_up") -> None:
        await self.handler.ended(Ending(True, reason, 60.0, ()))

    @property
    def settings(self) -> SessionSettings:
        assert self.controls.settings is not None
        return self.controls.settings

    def tools(self) -> dict[str, Any]:
        """What the model is offered now, by name."""
        return {str(tool["name"]): tool for tool in self.settings.tools}

    async def heard(self, text: str) -> None:
        """The caller says it, and the prompt has been looked at after that."""
        before = self._looks()
        await self.user(text)
        await eventually(lambda: self._looks() > before)
        await asyncio.sleep(0.02)

    def _looks(self) -> int:
        return sum(path.startswith("/v1/prompt/") for path in self.requests)

    def reconfigurations(self) -> int:
        return self.controls.names.count("reconfigure")

    async def events(self) -> list[Any]:
        return await self.scene.events(self.handler.contact.conversation_id)

    async def system_events(self) -> list[Any]:
        return [event["body"] for event in await self.events() if event["type"] == "system"]


def caller(**parameters: str) -> Caller:
    return Caller(CALL_ID, "+393471234567", parameters, AT)


def start(version_id: str, **changes: Any) -> FlowStart:
    given = {"transfers": {"segreteria": OPERATOR}, "agent_id": "agent-1", "agent_name": "Aurora"}
    return FlowStart(FlowChoice(version_id=version_id), **{"apology": "Mi dispiace.", **given, **changes})


@asynccontextmanager
async def flow_call(
    document: JsonObject,
    servers: Mapping[str, tuple[ScriptedTool, ...]] | None = None,
    *,
    lost: Callable[[httpx2.Request], bool] | None = None,
    parameters: Mapping[str, str] | None = None,
    engine: Callable[[Scene], EngineClient] | None = None,
    mcp: Callable[[Scene], ScriptedMcp] | None = None,
    version: str | None = None,
    notices: MemoryNotices | None = None,
    **start_changes: Any,
) -> AsyncIterator[FlowCall]:
    """`parameters` are the line's; a server that is not among `servers` cannot be reached."""
    requests: list[str] = []

    def answered(request: httpx2.Request) -> bool:
        requests.append(request.url.path)
        return lost is not None and lost(request)

    async with open_scene(document) as scene:
        controls = RecordingControls()
        scripted_servers = mcp(scene) if mcp is not None else ScriptedMcp(servers or {})
        handler = FlowCallHandler(
            start(version or document["_id"], **start_changes),
            BASE,
            caller(**(parameters or {})),
            controls,
            engine=engine(scene) if engine is not None else client_of(scene, answered),
            servers=scripted_servers,
            now=lambda: AT,
            notices=notices,
            pause=_hardly,
        )
        yield FlowCall(scene, handler, controls, scripted_servers, requests)
        await handler.ended(Ending(True, "caller_hung_up", 60.0, ()))


async def _hardly(seconds: float) -> None:
    await asyncio.sleep(seconds / 1000)


async def eventually(holds: Callable[[], bool], within_s: float = 30.0) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not holds():
        assert loop.time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)

"""A phone call through a flow with every part as its users run it: the engine and the voice agent are
processes; the model, the line, the carrier's REST interface and the business's MCP server are doubles.

    caller's line ⇄ voice agent ⇄ model
                        │ REST and MCP
                    flow engine ← memory ─ the business's MCP server
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.etree import ElementTree

import httpx
import orjson
import uvicorn
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from channels.voice.carriers.twilio.carrier import signature
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.realtime_session import Command, RealtimeSession
from channels.voice.testing.script import Script
from flows.samples import load_samples
from tests.flow_engine.listening.talking import EventReceiver, event_receiver
from tests.ports import free_port
from tests.service_process import ROOT, running_service

VOICE_SERVE = (sys.executable, "-m", "service.cli", "voice", "serve")
FLOW_ID = "health-booking"
EXAMPLE = ROOT / "channels" / "voice" / "config" / "examples" / "health_booking_flow.json"
PUBLIC_URL = "https://voice.example.com"
ACCOUNT, TOKEN = "AC123", "a token of the tests"
MODEL_KEY = "a key of the tests"
CALLER = "+393471234567"
BLOCKED = "+393470000000"
CARDIOGRAM = {"idPrestazione": "ECG-1", "nome": "Elettrocardiogramma"}


@dataclass
class Site:
    """What all calls of a module share; the doubles are always on the same ports."""

    engine_url: str
    voice_url: str
    log: Path
    events: EventReceiver
    model_port: int
    business_port: int
    outside_port: int

    def publish(self, changes: Callable[[dict[str, Any]], None] | None = None) -> None:
        """A version of the sample as an operator makes it, with the addresses of the business's own servers,
        and the tag by which the agent starts its calls moved to it."""
        (sample,) = (sample for sample in load_samples() if sample.flow_id == FLOW_ID)
        document = orjson.loads(sample.document)
        del document["_id"]
        for server in document["mcpServers"]:
            server["url"] = f"http://127.0.0.1:{self.business_port}/mcp"
        if changes is not None:
            changes(document)
        with httpx.Client(base_url=f"{self.engine_url}/v1/flows/{FLOW_ID}", timeout=30) as http:
            latest = next(row for row in http.get("/versions").json() if row["tag"] == "latest")
            parent = {"parentVersionId": latest["versionId"]}
            saved = http.post("/versions", params=parent, json=document)
            assert saved.status_code == 201, saved.text
            tag = {"versionId": saved.json()["versionId"], "updatedBy": "tests"}
            moved = http.put("/tags/prod", json=tag)
            assert moved.status_code == 200, moved.text

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = (line for line in self.log.read_bytes().splitlines() if line.startswith(b"{"))
        return [entry for entry in map(orjson.loads, lines) if entry.get("event") == event]

    def requests(self) -> list[dict[str, Any]]:
        """Those to the engine that the agent has logged."""
        return [entry for entry in self.logged("http_call") if "/v1/" in entry["url"]]


@contextmanager
def running_site(directory: Path) -> Generator[Site]:
    """The engine, and an agent that answers by the shipped example with checks and a lifecycle added."""
    model, business, outside = free_port(), free_port(), free_port()
    with event_receiver() as events:
        engine_env = {
            "FLOW_ENGINE_WEBHOOK_URL": events.url,
            "FLOW_ENGINE_WEBHOOK_SECRET": "a secret of the tests",
            "FLOW_ENGINE_OUTBOUND_ALLOW": events.url.split("/")[2],
        }
        with running_service(directory, **engine_env) as engine_url:
            environment = {
                "FLOW_ENGINE_REALTIME_URL": f"ws://127.0.0.1:{model}/v1/realtime",
                "FLOW_ENGINE_PUBLIC_URL": PUBLIC_URL,
                "FLOW_ENGINE_TWILIO_AUTH_TOKEN": TOKEN,
                "FLOW_ENGINE_TWILIO_ACCOUNT_SID": ACCOUNT,
                "FLOW_ENGINE_TWILIO_API_URL": f"http://127.0.0.1:{outside}",
                "FLOW_ENGINE_OUTBOUND_ALLOW": f"127.0.0.1:{business}",
            }
            config = agent_config(engine_url, f"http://127.0.0.1:{outside}")
            config_file, log = directory / "agent.json", directory / "voice.log"
            config_file.write_text(json.dumps(config), "utf-8")
            with running_voice_agent(config_file, log, **environment) as voice_url:
                yield Site(engine_url, voice_url, log, events, model, business, outside)


def agent_config(engine_url: str, business_url: str) -> dict[str, Any]:
    config = json.loads(EXAMPLE.read_text("utf-8"))
    config["session"]["engine_url"] = engine_url
    number = {"phone": "{{caller_phone}}"}
    ended = {"outcome": "{{outcome}}", "said": "{{transcript}}", **number}
    return {
        **config,
        "base_url": business_url,
        "pre_call_checks": [
            {
                **{"name": "blocked", "method": "GET", "url": "{{base_url}}/blocked", "params": number},
                **{"block_if": "$.blocked == true", "on_block": "hangup"},
            }
        ],
        "lifecycle": {
            "on_start": {"method": "POST", "url": "{{base_url}}/started", "body": number},
            "on_end": {"method": "POST", "url": "{{base_url}}/ended", "body": ended},
            "outcome_rules": [
                {"flag": "transferred", "outcome": "handed_over", "priority": 1},
                {"flag": None, "outcome": "done", "priority": 2},
            ],
        },
    }


@contextmanager
def running_voice_agent(config: Path, log: Path, **environment: str) -> Generator[str]:
    """Yields the base URL. Fails when the agent does not start, or does not end in order."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*VOICE_SERVE, "--config", str(config), "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, "OPENAI_API_KEY": MODEL_KEY, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_answering(url, process, log)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, "SIGTERM ends the agent cleanly"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_until_answering(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the voice agent did not start: {log.read_text('utf-8')}")


# The business and the carrier --------------------------------------------------------------------------


def business_server(engine: httpx.AsyncClient) -> MCPServer:
    """Catalogue and schedule of the clinic. What it finds it writes into the conversation's memory, as the
    tools of a flow do."""
    server = MCPServer("poliambulatorio", log_level="CRITICAL")

    @server.tool(description="Cerca una prestazione nel catalogo.")
    async def cerca_prestazione(testo: str, massimo: int, conversationId: str, contactId: str) -> str:
        entry = {
            "varId": "idPrestazione",
            "value": CARDIOGRAM,
            "updatedBy": "cerca_prestazione",
            "contactId": contactId,
            "descriptionForLLM": [{"name": "nome", "value": CARDIOGRAM["nome"]}],
        }
        written = await engine.put(f"/v1/memory/{conversationId}", json=[entry])
        written.raise_for_status()
        return f"Trovata per {testo!r}: Elettrocardiogramma ({massimo} risultati al massimo)"

    @server.tool(description="Posti liberi per una prestazione.")
    async def cerca_disponibilita(prestazione: dict[str, str], dal: str, sede: str = "") -> str:
        return f"{prestazione['nome']} a {sede or 'Centro'}: giovedì 12 marzo alle 10:30, dal {dal}"

    return server


@dataclass
class Outside:
    """The part of Twilio's REST interface that moves calls, and what the config tells the business."""

    moved: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Account, call and where it was given to."""
    told: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/2010-04-01/Accounts/{account}/Calls/{call}", self._redirect, methods=["POST"]),
                Route("/blocked", self._blocked),
                Route("/{event}", self._event, methods=["POST"]),
            ]
        )

    async def _redirect(self, request: Request) -> Response:
        expected = base64.b64encode(f"{ACCOUNT}:{TOKEN}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {expected}":
            return JSONResponse({"code": 20003}, 401)
        twiml = ElementTree.fromstring(parse_qs((await request.body()).decode())["Twiml"][0])
        path = request.path_params
        self.moved.append((path["account"], path["call"].removesuffix(".json"), "".join(twiml.itertext())))
        return JSONResponse({"status": "in-progress"})

    async def _blocked(self, request: Request) -> Response:
        return JSONResponse({"blocked": request.query_params["phone"] == BLOCKED})

    async def _event(self, request: Request) -> Response:
        self.told.append((request.path_params["event"], await request.json()))
        return JSONResponse({})


@asynccontextmanager
async def serving(app: Any, port: int) -> AsyncGenerator[None]:
    config = uvicorn.Config(app, "127.0.0.1", port, ws="none", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task


# A call ------------------------------------------------------------------------------------------------


@dataclass
class LiveCall:
    """One call that goes on; `call.playout` is the truth of what the caller heard."""

    site: Site
    call: FakeTwilioCall
    session: RealtimeSession
    outside: Outside
    engine: httpx.AsyncClient
    dialled_at: float
    conversation_id: str

    def commands(self, *kinds: str) -> list[Command]:
        return [command for command in self.session.commands if command.kind in kinds]

    def updates(self) -> list[Mapping[str, Any]]:
        """The sessions that the model was told to be, oldest first."""
        return [command.fields["session"] for command in self.commands("session.update")]  # type: ignore[misc]

    def tools(self, update: int = -1) -> dict[str, Any]:
        return {tool["name"]: tool for tool in self.updates()[update]["tools"]}

    def tool_answers(self) -> list[Any]:
        items = [command.fields["item"] for command in self.commands("conversation.item.create")]
        return [json.loads(item["output"]) for item in items if item["type"] == "function_call_output"]  # type: ignore[index, call-overload]

    def told(self, role: str) -> list[str]:
        """The texts that the model was given as messages of `role`."""
        items = [command.fields["item"] for command in self.commands("conversation.item.create")]
        return [item["content"][0]["text"] for item in items if item.get("role") == role]  # type: ignore[union-attr, call-overload, index]

    def events(self) -> list[Any]:
        """What the engine has reported of this conversation, oldest first."""
        return [event for event in self.site.events.events if event["conversationId"] == self.conversation_id]

    def happenings(self) -> list[Any]:
        """Without what the whole conversation is found to have missed, some time after its end."""
        bodies = (event["body"] for event in self.events() if event["type"] == "system")
        return [body for body in bodies if body["subtype"] != "checkpoint_missed"]

    async def memory(self) -> dict[str, Any]:
        reply = await self.engine.get(f"/v1/memory/{self.conversation_id}")
        return {variable["varId"]: variable["value"] for variable in reply.json()["vars"]}

    async def heard(self, item: int, ms: float) -> None:
        """Wait until the caller has heard so much of one item."""
        await self.until(lambda: self.call.playout.heard_ms(item) >= ms)

    async def until(self, holds: Callable[[], bool], within_s: float = 30.0) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not holds():
            if loop.time() > deadline:
                raise AssertionError(f"not in time; {self.session.errors} {self.session.commands}")
            self.call.playout.advance(loop.time())
            await asyncio.sleep(0.02)


@asynccontextmanager
async def line_of(
    site: Site, script: Script, *, phone: str = CALLER, pace: Pace | None = None
) -> AsyncGenerator[tuple[FakeTwilioCall, FakeRealtime, Outside, httpx.AsyncClient]]:
    """Dial as the carrier does: the signed webhook, then the signed stream with its parameters."""
    outside = Outside()
    async with (
        httpx.AsyncClient(base_url=site.engine_url, timeout=30) as engine,
        serving(business_server(engine).streamable_http_app(), site.business_port),
        serving(outside.application(), site.outside_port),
        FakeRealtime(script, pace=pace, port=site.model_port, api_key=MODEL_KEY) as model,
    ):
        stream_url, parameters = await incoming_call(site, phone)
        local = site.voice_url.replace("http", "ws", 1) + "/media-stream"
        line = FakeTwilioCall(local, parameters=parameters, auth_token=TOKEN, signed_url=stream_url)
        async with line:
            yield line, model, outside, engine
            assert line.mistakes == []


@asynccontextmanager
async def live_call(site: Site, script: Script, *, pace: Pace | None = None) -> AsyncGenerator[LiveCall]:
    async with line_of(site, script, pace=pace) as (line, model, outside, engine):
        dialled_at = asyncio.get_running_loop().time()
        session = await model.session()
        conversation_id = site.logged("call_began")[-1]["call_id"]
        call = LiveCall(site, line, session, outside, engine, dialled_at, conversation_id)
        yield call
        assert session.errors == []


async def incoming_call(site: Site, phone: str) -> tuple[str, dict[str, str]]:
    """What the webhook answers: the stream's URL and its parameters."""
    form = {"From": phone, "To": "+390612345678", "CallSid": "CA1"}
    signed = signature(TOKEN, f"{PUBLIC_URL}/incoming-call", {name: [value] for name, value in form.items()})
    async with httpx.AsyncClient(base_url=site.voice_url) as http:
        answer = await http.post("/incoming-call", data=form, headers={"X-Twilio-Signature": signed})
    assert answer.status_code == 200, answer.text
    stream = ElementTree.fromstring(answer.text).find("./Connect/Stream")
    assert stream is not None
    parameters = {each.attrib["name"]: each.attrib["value"] for each in stream.findall("Parameter")}
    return stream.attrib["url"], parameters

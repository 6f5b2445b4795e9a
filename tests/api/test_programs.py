"""What operators see by the API of the programs beside the service: voice agents, and the chat."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from api.programs import voice_figures
from channels.chat.accounts import AgentRun
from channels.chat.decisions import Decision
from channels.chat.router import Candidate
from channels.voice.call.state import Counts
from channels.voice.metrics import CountedCall, Counting
from flow_engine.ports.chat import SessionRef
from service.chat import accounts_of
from service.observing import CHAT_COUNTED, CountingObserver
from tests.api.harness import Scene, keyring_of, open_scene
from tests.ports import free_port

pytestmark = pytest.mark.anyio

KEYS = [
    {"key": f"{tenant}-key", "tenant": tenant, "scopes": ["operator"], "name": tenant}
    for tenant in ("default", "other")
]


async def get(scene: Scene, path: str) -> Any:
    reply = await scene.http.get(f"/v1/operations/{path}")
    assert reply.status_code == 200, reply.text
    return reply.json()


def counted() -> Mapping[str, str]:
    """What an agent tells, by path, of two calls, of which one goes on."""
    counting, began = Counting(), datetime(2026, 1, 15, 9, 30, tzinfo=UTC)
    ended = CountedCall("a" * 32, began, Counts(interruptions=2, response_seconds=[0.5, 0.7]))
    counting.call_began(ended)
    counting.call_began(CountedCall("b" * 32, began, Counts(response_seconds=[1.25])))
    counting.call_ended(ended, "caller_hung_up", 30.0)
    counting.call_refused("busy")
    metrics = generate_latest(counting.registry).decode()
    return {"/metrics": metrics, "/calls": json.dumps({"calls": counting.calls()})}


@contextmanager
def an_agent(told: Mapping[str, str]) -> Iterator[int]:
    """A server on loopback that answers these paths with these texts; its port."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in told else 404)
            self.end_headers()
            self.wfile.write(told.get(self.path, "").encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def status(*ports: int, **changes: Any) -> dict[str, Any]:
    agent = {"type": "restaurant", "state": "running", "pid": 1, "restarts": 0, "crashesInARow": 0}
    agent |= {"crashLoop": False, "liveCalls": 1, "bridge": None}
    return {
        "version": 1,
        "pid": os.getpid(),
        "stopping": False,
        "refreshed": {"at": "2026-01-15T09:31:00Z", "error": None},
        "agents": [{**agent, "id": f"r-{port}", "name": "Da Gino", "port": port} for port in ports],
        "notAccepted": [{"id": "r-9", "problems": [{"pointer": "", "code": "no_template", "message": "m"}]}],
        "writtenAt": "2026-01-15T09:31:00Z",
        **changes,
    }


def managed(folder: Path, told: object, pid: object = None) -> Path:
    """The directory of a manager; without `pid` this process is the one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(told if isinstance(told, str) else json.dumps(told))
    (folder / "manager.lock").write_text(f"{os.getpid() if pid is None else pid}\n")
    return folder


async def test_voice_agents_are_told_with_what_they_count(tmp_path: Path) -> None:  # console: operations
    silent = free_port()
    with an_agent(counted()) as port:
        folder = managed(tmp_path / "voice", status(port, silent))
        async with open_scene(voice_directory=folder) as scene:
            told = await get(scene, "voice")
    assert told["missing"] is None
    assert told["manager"] == {
        "writtenAt": "2026-01-15T09:31:00Z",
        "stopping": False,
        "refreshedAt": "2026-01-15T09:31:00Z",
        "refreshError": None,
    }
    answering, away = told["agents"]
    assert (answering["id"], answering["name"], answering["state"]) == (f"r-{port}", "Da Gino", "running")
    figures = answering["figures"]
    assert (figures["callsActive"], figures["callsEnded"]) == (1, {"caller_hung_up": 1})
    assert (figures["callsRefused"], figures["bargeIns"], figures["turns"]) == ({"busy": 1}, 2, 2)
    assert figures["meanMs"] == 600
    assert 400 <= figures["p50Ms"] <= figures["p95Ms"] <= 800
    ended = {"callId": "a" * 32, "seconds": 30.0, "reason": "caller_hung_up", "bargeIns": 2}
    ended |= {"startedAt": "2026-01-15T09:30:00+00:00", "turns": 2, "turnsMs": [500, 700]}
    going_on = {"callId": "b" * 32, "seconds": None, "reason": None, "bargeIns": 0}
    going_on |= {"startedAt": "2026-01-15T09:30:00+00:00", "turns": 1, "turnsMs": [1250]}
    assert answering["calls"] == [going_on, ended]
    assert (away["figures"], away["calls"]) == (None, []), "one that does not answer"
    assert told["notAccepted"][0]["problems"][0]["code"] == "no_template"


async def test_where_no_manager_runs_it_is_told_what_is_missing(tmp_path: Path) -> None:
    async with open_scene(data_dir=tmp_path) as scene:
        assert "flow-engine voice manage" in (await get(scene, "voice"))["missing"]
        managed(tmp_path / "voice", status())
        assert (await get(scene, "voice"))["missing"] is None, "a manager with the same data directory"
        for pid in (2**22 + 1, "nothing", 10**30):  # above every process's number
            managed(tmp_path / "voice", status(), pid)
            assert "has ended" in (await get(scene, "voice"))["missing"]
        managed(tmp_path / "voice", "{")
        assert "cannot be read" in (await get(scene, "voice"))["missing"]
    (tmp_path / "keys.json").write_text("{}")
    async with open_scene(data_dir=tmp_path, api_keys_file=tmp_path / "keys.json") as scene:
        managed(tmp_path / "voice", status())
        missing = (await get(scene, "voice"))["missing"]
        assert "FLOW_ENGINE_VOICE_DIRECTORY" in missing, "with keys, agents are shown where a setting says so"


async def test_what_is_no_agent_of_this_product_has_no_figures(tmp_path: Path) -> None:
    with an_agent({"/metrics": "{ no metrics } at all "}) as port:
        async with open_scene(voice_directory=managed(tmp_path, status(port))) as scene:
            [agent] = (await get(scene, "voice"))["agents"]
    assert (agent["figures"], agent["calls"]) == (None, [])


@pytest.mark.parametrize("calls", [{}, {"/calls": "{"}, {"/calls": '{"calls": [{"callId": 1}]}'}])
async def test_an_agent_that_does_not_tell_of_single_calls_has_its_figures(
    tmp_path: Path, calls: dict[str, str]
) -> None:
    with an_agent({"/metrics": counted()["/metrics"], **calls}) as port:
        async with open_scene(voice_directory=managed(tmp_path, status(port))) as scene:
            [agent] = (await get(scene, "voice"))["agents"]
    assert (agent["figures"]["turns"], agent["calls"]) == (2, [])


def test_an_agent_without_a_call_has_no_latency() -> None:
    figures = voice_figures(generate_latest(Counting().registry).decode())
    assert (figures["turns"], figures["meanMs"], figures["p50Ms"]) == (0, None, None)
    assert voice_figures("")["turns"] == 0


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(authenticator=keyring_of(json.dumps({"keys": KEYS}))) as opened:
        opened.http.headers["Authorization"] = "Bearer default-key"
        yield opened


async def chatted(scene: Scene, messages: int) -> None:
    """As many messages as that, of two sessions, as a chat on the same database accounts for them."""
    observer = CountingObserver(CollectorRegistry(), CHAT_COUNTED)
    accounts = accounts_of(scene.flows, scene.clock, observer)
    for number in range(messages):
        scene.clock.advance(seconds=1)
        ref = SessionRef("default", f"s-{number % 2}")
        decision = Decision([Candidate("hours", 0.8)], "hours", 0.9, "accept", "high enough", "model")
        await accounts.decided(ref, f"m-{number}", decision, 1)
        run = AgentRun("hours", f"m-{number}", final_message="From nine.")
        run.tool_calls_log.append({"tool": "look_up", "arguments": {}, "result": 1, "iteration": 1})
        await accounts.ran(ref, run)
    await accounts.aclose()


async def test_decisions_of_the_chat_are_read_page_by_page(scene: Scene) -> None:  # console: operations
    assert await get(scene, "chat") == {"decisions": [], "nextBefore": None}
    await chatted(scene, 5)
    first = await get(scene, "chat?limit=3")
    assert [row["messageId"] for row in first["decisions"]] == ["m-4", "m-3", "m-2"]
    newest = first["decisions"][0]
    assert (newest["session"], newest["action"], newest["agent"]) == ("s-0", "accept", "hours")
    assert (newest["confidence"], newest["decidedBy"]) == (0.9, "model")
    assert newest["candidates"] == [{"agent": "hours", "score": 0.8}]
    rest = await get(scene, f"chat?limit=3&before={first['nextBefore']}")
    assert [row["messageId"] for row in rest["decisions"]] == ["m-1", "m-0"]
    assert rest["nextBefore"] is None
    reply = await scene.http.get("/v1/operations/chat?before=nothing")
    assert (reply.status_code, reply.json()["code"]) == (422, "before_invalid")
    reply = await scene.http.get("/v1/operations/chat?before=nothing&limit=0")
    assert {each["code"] for each in reply.json()["errors"]} == {"before_invalid", "limit_invalid"}  # F36
    reply = await scene.http.get(f"/v1/operations/chat?before={first['nextBefore']}&limit=0")
    assert [each["code"] for each in reply.json()["errors"]] == ["limit_invalid"]


async def test_a_session_of_the_chat_has_its_decisions_and_runs(scene: Scene) -> None:
    await chatted(scene, 3)
    session = await get(scene, "chat/s-0")
    assert [row["messageId"] for row in session["decisions"]] == ["m-0", "m-2"]
    assert [(run["messageId"], run["agent"], run["status"], run["tools"]) for run in session["runs"]] == [
        ("m-0", "hours", "completed", ["look_up"]),
        ("m-2", "hours", "completed", ["look_up"]),
    ]
    assert session["runs"][0]["finalMessage"] == "From nine."
    other = {"Authorization": "Bearer other-key"}
    assert (await scene.http.get("/v1/operations/chat", headers=other)).json()["decisions"] == []
    for name, headers in (("nobody", {}), ("s-0", other), ("mail:open", {})):
        reply = await scene.http.get(f"/v1/operations/chat/{name}", headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (404, "session_unknown")

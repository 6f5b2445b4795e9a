"""`POST /v1/assistant`: its frames letter by letter, who may, and what is refused (W2, W8, W9)."""

import asyncio
import gc
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from starlette.requests import Request

from adapters.http_door import listen
from adapters.models.fake_openai import FakeOpenAI, WireStep
from adapters.models.scripted import CallsTools, DropsStream, Says, Stalls
from api.auth import Keyring, LocalOnly, Principal
from channels.gateway.config import GatewayFile, GatewaySettings
from channels.workspace.confinement import Root
from channels.workspace.store import Store
from flow_engine.ports.models import ToolCall
from service.assistant import OwnDoor, assistant_routes
from service.gateway import gateway_server, gateway_service
from service.serving import KeyDoor
from service.settings import Settings

pytestmark = pytest.mark.anyio

KEYS = {"workspace": "w" * 20, "gateway": "g" * 20, "admin": "a" * 20, "other": "o" * 20}


def calls(name: str, text: str = "", /, **arguments: Any) -> CallsTools:
    return CallsTools([ToolCall(f"call_{name}", name, arguments)], text)


@dataclass
class Stream:
    """One run: its frames as they come, and the bytes of all."""

    pieces: AsyncIterator[bytes]
    raw: bytes = b""
    seen: int = 0

    @property
    def frames(self) -> list[Any]:
        return [self._read(each) for each in self.raw.split(b"\n\n")[:-1] if each.startswith(b"data:")]

    async def until(self, kind: str) -> Any:
        """What the next frame of that kind holds."""
        while True:
            for frame in self.frames[self.seen :]:
                self.seen += 1
                if kind in frame:
                    return frame[kind]
            self.raw += await anext(self.pieces)

    async def rest(self) -> list[Any]:
        async for piece in self.pieces:
            self.raw += piece
        return self.frames

    @staticmethod
    def _read(event: bytes) -> Any:
        data = event.removeprefix(b"data: ")
        return "[DONE]" if data == b"[DONE]" else orjson.loads(data)


@dataclass
class Server:
    http: httpx2.AsyncClient
    model: FakeOpenAI
    root: Path
    stop: Callable[[], None]

    @asynccontextmanager
    async def run(self, prompt: str = "Do it.", **more: Any) -> AsyncGenerator[Stream]:
        body = {"workspace": "project", "prompt": prompt, "stream": True, **more}
        async with self.http.stream("POST", "/v1/assistant", json=body) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield Stream(response.aiter_raw())

    async def post(self, key: str | None = None, /, **body: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {KEYS[key]}"} if key else {}
        return await self.http.post("/v1/assistant", json=body, headers=headers)

    async def confirm(self, run: str, **body: Any) -> httpx2.Response:
        return await self.http.post(f"/v1/assistant/{run}/confirm", json=body)


@asynccontextmanager
async def serving(
    tmp_path: Path,
    steps: Sequence[WireStep],
    *,
    keys: bool = False,
    model: str | None = "m",
    tenant: str | None = None,
) -> AsyncGenerator[Server]:
    root = tmp_path / "project"
    root.mkdir(exist_ok=True)
    async with FakeOpenAI(steps).running() as fake:
        backend = {"name": "b", "kind": "openai", "url": fake.base_url, "models": ["m", "n"]}
        file = GatewayFile.model_validate(
            {
                "backends": [backend],
                "workspaces": [{"name": "project", "path": str(root), "tenant": tenant}],
                "assistant": {"model": model},
            }
        )
        ring = [
            {"key": key, "tenant": "t2" if name == "other" else "t1", "name": name}
            | {"scopes": ["workspace" if name == "other" else name]}
            for name, key in KEYS.items()
        ]
        door = OwnDoor(KeyDoor(Keyring.parse(orjson.dumps({"keys": ring})) if keys else LocalOnly()))
        listening = listen("127.0.0.1", 0)
        origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
        settings = GatewaySettings(gateway_heartbeat_s=0.2)
        assistant = assistant_routes(file, settings, door, f"{origin}/v1")
        async with gateway_service(
            Settings(data_dir=tmp_path / "data"), settings, file, door, more_routes=assistant.routes()
        ) as app:
            server = gateway_server(app)
            task = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                async with httpx2.AsyncClient(base_url=origin, timeout=20, trust_env=False) as http:
                    yield Server(http, fake, root, partial(setattr, server, "should_exit", True))
            finally:
                server.should_exit = True
                await task
                assistant.close()


async def test_the_frames_letter_by_letter(tmp_path: Path) -> None:  # W9
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("hello\n", "utf-8")
    steps = [calls("read_file", "I look.", path="a.txt"), Says("It says hello.")]
    async with serving(tmp_path, steps) as server, server.run() as stream:
        await stream.rest()
    lines = [line for line in stream.raw.decode().split("\n\n") if line != ": waiting"]
    first = orjson.loads(lines[0].removeprefix("data: "))
    assert list(first) == ["run", "session"]
    assert lines[1] == 'data: {"content":"I look."}'
    running = orjson.loads(lines[2].removeprefix("data: "))["tool"]
    assert list(running) == ["call", "name", "arguments", "status"]
    assert (running["name"], running["arguments"], running["status"]) == (
        *("read_file", {"path": "a.txt"}, "running"),
    )
    done = orjson.loads(lines[3].removeprefix("data: "))["tool"]
    assert list(done) == ["call", "name", "arguments", "status", "result"]
    assert (done["call"], done["status"], done["result"]["content"]) == (running["call"], "done", "hello\n")
    assert lines[4:] == ['data: {"content":"It says hello."}', "data: [DONE]", ""]


@pytest.mark.parametrize(
    ("decision", "status", "again"),
    [("once", "done", True), ("session", "done", False), ("no", "rejected", True)],
)
async def test_a_write_is_confirmed(decision: str, status: str, again: bool, tmp_path: Path) -> None:  # W2
    steps = [
        calls("write_file", path="a.txt", content="one\n"),
        calls("write_file", path="b.txt", content="two\n"),
        Says("Done."),
    ]
    async with serving(tmp_path, steps) as server, server.run() as stream:
        run = await stream.until("run")
        asked = await stream.until("confirm")
        assert list(asked) == ["call", "name", "arguments", "diff"]
        assert asked["diff"] == "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+one\n"
        assert not (server.root / "a.txt").exists()
        answered = await server.confirm(run, call=asked["call"], decision=decision)
        assert (answered.status_code, answered.json()) == (200, {"call": asked["call"], "decision": decision})
        assert (await server.confirm(run, call=asked["call"], decision="once")).status_code == 404
        if again:
            second = await stream.until("confirm")
            await server.confirm(run, call=second["call"], decision="no")
        frames = await stream.rest()
        tools = [each["tool"] for each in frames if "tool" in each and each["tool"]["status"] != "running"]
        assert [each["status"] for each in tools] == [status, "rejected" if again else "done"]
        assert (server.root / "a.txt").exists() == (decision != "no")
        assert frames[-1] == "[DONE]"
    if decision == "no":
        sent = orjson.loads(server.model.requests[1].body["messages"][-1]["content"])
        assert (sent["success"], sent["error"], set(sent)) == (
            *(False, "USER_REJECTED", {"success", "error", "message"}),
        )


async def test_a_command_is_asked_for_each_time(tmp_path: Path) -> None:  # W2
    steps = [calls("shell_exec", command="echo one"), calls("shell_exec", command="echo two"), Says("Done.")]
    async with serving(tmp_path, steps) as server, server.run() as stream:
        run = await stream.until("run")
        for command in ("echo one", "echo two"):
            asked = await stream.until("confirm")
            assert (asked["arguments"], "diff" in asked) == ({"command": command}, False)
            await server.confirm(run, call=asked["call"], decision="session")
        frames = await stream.rest()
        tools = [each["tool"] for each in frames if "tool" in each]
        results = [each["result"]["stdout"] for each in tools if "result" in each]
        assert results == ["one\n", "two\n"]


async def test_a_session_keeps_what_was_granted_and_goes_on(tmp_path: Path) -> None:  # W2
    steps = [
        calls("write_file", path="a.txt", content="one\n"),
        Says("First."),
        calls("write_file", path="b.txt", content="two\n"),
        Says("Second."),
    ]
    async with serving(tmp_path, steps) as server:
        async with server.run("Write a.") as stream:
            run = await stream.until("run")
            asked = await stream.until("confirm")
            await server.confirm(run, call=asked["call"], decision="session")
            await stream.rest()
        session = stream.frames[0]["session"]
        async with server.run("Write b.", session=session) as stream:
            frames = await stream.rest()
        assert frames[0]["session"] == session
        assert not any("confirm" in each for each in frames)
        assert (server.root / "b.txt").exists()
        told = [each["role"] for each in server.model.requests[-1].body["messages"]]
        assert told == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool"]


async def test_a_client_that_goes_away_has_said_no(tmp_path: Path) -> None:  # W9
    steps = [calls("write_file", path="a.txt", content="x"), Says("Done.")]
    async with serving(tmp_path, steps) as server:
        async with server.run() as stream:
            run = await stream.until("run")
            session = stream.frames[0]["session"]
            asked = await stream.until("confirm")
        for _ in range(100):
            gone = await server.confirm(run, call=asked["call"], decision="once")
            if gone.status_code == 404:
                break
            await asyncio.sleep(0.01)
        assert gone.status_code == 404
        assert not (server.root / "a.txt").exists()
        async with server.run("Go on.", session=session) as stream:
            await stream.rest()
        closed = server.model.requests[-1].body["messages"][-2]
        assert (closed["role"], orjson.loads(closed["content"])["error"]) == ("tool", "INTERRUPTED")


async def test_a_client_that_goes_away_leaves_no_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # W9
    steps = [calls("write_file", path="a.txt", content="x")]
    async with serving(tmp_path, steps) as server, server.run() as stream:
        await stream.until("confirm")
    gc.collect()
    assert "was destroyed" not in caplog.text


async def test_without_a_stream_one_object_and_nobody_is_asked(tmp_path: Path) -> None:  # W2
    steps = [
        calls("list_files", path="."),
        calls("write_file", path="a.txt", content="x"),
        Says("I may not."),
    ]
    async with serving(tmp_path, steps) as server:
        reply = await server.post(workspace="project", prompt="Write.", stream=False)
        body = reply.json()
        assert (reply.status_code, list(body)) == (200, ["run", "session", "content", "tools"])
        assert body["content"] == "I may not."
        assert [(each["name"], each["status"]) for each in body["tools"]] == [
            ("list_files", "done"),
            ("write_file", "rejected"),
        ]
        assert body["tools"][1]["result"]["error"] == "USER_REJECTED"
        assert not (server.root / "a.txt").exists()


async def test_used_up_iterations_are_an_error_and_no_end(tmp_path: Path) -> None:  # W8
    async with serving(tmp_path, [calls("list_files", path=".")]) as server:
        async with server.run() as stream:
            frames = await stream.rest()
        assert list(frames[-1]["error"]) == ["code", "message"]
        assert frames[-1]["error"]["code"] == "max_iterations_exceeded"
        assert "list_files . (done)" in frames[-1]["error"]["message"]
        assert b"[DONE]" not in stream.raw
        assert len(server.model.requests) == 10
        plain = await server.post(workspace="project", prompt="x", stream=False)
        assert (plain.status_code, plain.json()["error"]["code"]) == (500, "max_iterations_exceeded")


async def test_a_model_that_breaks_off_is_an_error_and_no_end(tmp_path: Path) -> None:  # W9
    async with serving(tmp_path, [DropsStream("It was a ")]) as server:
        async with server.run() as stream:
            frames = await stream.rest()
        assert "error" in frames[-1]
        assert b"[DONE]" not in stream.raw
        plain = await server.post(workspace="project", prompt="x", stream=False)
        assert plain.status_code == 502
        assert set(plain.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_run_that_meets_a_bug_ends_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # W9
    async with serving(tmp_path, [calls("list_files", path="."), Says("Done.")]) as server:
        async with server.run() as stream:
            await stream.until("run")
            with closing(sqlite3.connect(server.root / ".agentichat" / "workspace.db")) as database:
                database.execute("ALTER TABLE messages RENAME TO gone")
            frames = await stream.rest()
        plain = await server.post(workspace="project", prompt="x", stream=False)
    assert (list(frames[-1]), frames[-1]["error"]["code"]) == (["error"], "internal_error")
    assert (plain.status_code, plain.json()["error"]["code"]) == (500, "internal_error")


async def test_a_run_that_outlasts_a_gateway_that_stops_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # W9
    monkeypatch.setattr("service.gateway.ANSWERS_END_WITHIN_S", 0.1)
    async with serving(tmp_path, [Stalls(30)]) as server, server.run() as stream:
        await stream.until("run")
        server.stop()
        frames = await stream.rest()
    assert frames[-1]["error"]["code"] == "stopping"
    assert not [each for each in caplog.records if each.exc_info], "an end in order is no error"


async def test_a_workspace_that_cannot_be_used_is_told_and_holds_nothing(tmp_path: Path) -> None:  # W9
    async with serving(tmp_path, [Says("Done.")]) as server:
        server.root.rmdir()
        gone = await server.post(workspace="project", prompt="x", stream=False)
        server.root.mkdir()
        (server.root / ".agentichat").write_text("no folder", "utf-8")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            unusable = await server.post(workspace="project", prompt="x", stream=False)
        assert len(os.listdir("/proc/self/fd")) < before + 10
        (server.root / ".agentichat").unlink()
        assert (await server.post(workspace="project", prompt="x", stream=False)).status_code == 200
    for refused in (gone, unusable):
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "workspace_unusable")


async def test_a_silent_model_is_bridged_by_comments(tmp_path: Path) -> None:  # W9
    async with serving(tmp_path, [Stalls(0.7, Says("Late."))]) as server:
        async with server.run() as stream:
            await stream.rest()
        assert stream.raw.count(b": waiting\n\n") >= 2
        assert stream.raw.endswith(b"data: [DONE]\n\n")


REFUSED: Sequence[tuple[Mapping[str, Any], int, str]] = [
    ({"workspace": "none", "prompt": "x"}, 404, "workspace_unknown"),
    ({"workspace": "../project", "prompt": "x"}, 404, "workspace_unknown"),
    ({"workspace": "/etc", "prompt": "x"}, 404, "workspace_unknown"),
    ({"workspace": "project", "prompt": "x", "session": "none"}, 404, "session_unknown"),
    ({"workspace": "project", "prompt": "x", "session": ""}, 404, "session_unknown"),
    ({"workspace": "project", "prompt": ""}, 400, "invalid_body"),
    ({"workspace": "project"}, 400, "invalid_body"),
    ({"prompt": "x"}, 400, "invalid_body"),
    ({"workspace": "project", "prompt": "x", "colour": 1}, 400, "invalid_body"),
    ({"workspace": ["project"], "prompt": "x"}, 400, "invalid_body"),
    ({"workspace": "project", "prompt": "x", "stream": "perhaps"}, 400, "invalid_body"),
]


async def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:  # W9
    async with serving(tmp_path, [Says("x")]) as server:
        for body, status, code in REFUSED:
            refused = await server.post(**body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code), body
        assert server.model.requests == []


async def test_bodies_that_are_no_json_are_refused(tmp_path: Path) -> None:  # W9
    async with serving(tmp_path, [Says("x")], model=None) as server:
        for content in (b"", b"{", b"[]", b"null", b'"x"', b"\xff"):
            refused = await server.http.post("/v1/assistant", content=content)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_body"), content
        missing = await server.post(workspace="project", prompt="x")
        assert (missing.status_code, missing.json()["error"]["code"]) == (400, "model_missing")
        assert (await server.post(workspace="project", prompt="x", model="n", stream=False)).json()["content"]
        assert server.model.requests[0].body["model"] == "n"
        unknown = await server.post(workspace="project", prompt="x", model="none", stream=False)
        assert unknown.status_code == 502


async def test_a_confirmation_of_nothing_is_refused(tmp_path: Path) -> None:  # W2
    async with serving(tmp_path, [calls("write_file", path="a", content="x"), Says("x")]) as server:
        assert (await server.confirm("none", call="x", decision="once")).status_code == 404
        async with server.run() as stream:
            run = await stream.until("run")
            asked = await stream.until("confirm")
            assert (await server.confirm(run, call="none", decision="once")).status_code == 404
            for decision in ("always", "yes", "", None):
                wrong = await server.confirm(run, call=asked["call"], decision=decision)
                assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_body")
            await server.confirm(run, call=asked["call"], decision="no")
            await stream.rest()
        assert (await server.confirm(run, call=asked["call"], decision="once")).status_code == 404


async def test_one_run_at_a_time_in_a_session(tmp_path: Path) -> None:  # W9
    steps = [calls("write_file", path="a", content="x"), Says("x")]
    async with serving(tmp_path, steps) as server, server.run() as stream:
        run = await stream.until("run")
        session = stream.frames[0]["session"]
        asked = await stream.until("confirm")
        busy = await server.post(workspace="project", prompt="x", session=session)
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "session_busy")
        await server.confirm(run, call=asked["call"], decision="no")
        await stream.rest()


@pytest.mark.parametrize("stream", [True, False])
async def test_of_runs_that_begin_at_once_in_a_session_one_has_it(stream: bool, tmp_path: Path) -> None:  # W8
    async with serving(tmp_path, [Says("First."), Stalls(0.3, Says("Hi."))]) as server:
        body = {"workspace": "project", "prompt": "x"}
        session = (await server.post(**body, stream=False)).json()["session"]
        waiting: list[Awaitable[httpx2.Response]] = [
            server.post(**body, session=session, stream=stream) for _ in range(6)
        ]
        replies = await asyncio.gather(*waiting)
        assert sorted(reply.status_code for reply in replies) == [200] + [409] * 5
        assert {r.json()["error"]["code"] for r in replies if r.status_code == 409} == {"session_busy"}
        assert (await server.post(**body, session=session, stream=False)).status_code == 200


async def test_a_model_that_cannot_be_asked_does_not_exist_and_holds_no_session(tmp_path: Path) -> None:  # W8
    async with serving(tmp_path, [Says("Hi.")]) as server:
        body = {"workspace": "project", "prompt": "x"}
        session = (await server.post(**body, stream=False)).json()["session"]
        for model in (" ", "m,n", "m,local:n", "m,openai:n", ","):
            for stream in (True, False):
                refused = await server.post(**body, session=session, model=model, stream=stream)
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert (await server.post(**body, session=session, stream=False)).status_code == 200


def test_each_caller_has_a_key_of_its_own_that_a_header_can_hold() -> None:  # W8
    door = OwnDoor(KeyDoor(LocalOnly()))
    callers = [
        Principal(tenant, frozenset(), name)
        for tenant, name in (("a", "b.c"), ("a.b", "c"), ("a", "Zoë"), ("ä", "ключ"))
    ]
    keys = [door.key_for(caller) for caller in callers]
    assert len(set(keys)) == len(callers)
    for key, caller in zip(keys, callers, strict=True):
        headers = [(b"authorization", f"Bearer {key}".encode("ascii"))]
        admitted = door.admit(Request({"type": "http", "headers": headers}), "gateway")
        assert (admitted.tenant_id, admitted.name) == (caller.tenant_id, caller.name)


async def test_a_key_needs_the_scope_and_the_run_is_its_tenants(tmp_path: Path) -> None:  # W2
    steps = [calls("write_file", path="a", content="x"), Says("x")]
    async with serving(tmp_path, steps, keys=True) as server:
        body = {"workspace": "project", "prompt": "x"}
        assert (await server.post(**body)).status_code == 401
        assert (await server.post("gateway", **body)).status_code == 403
        server.http.headers["Authorization"] = f"Bearer {KEYS['workspace']}"
        async with server.run() as stream:
            run = await stream.until("run")
            asked = await stream.until("confirm")
            stranger = {"Authorization": f"Bearer {KEYS['other']}"}
            answer = {"call": asked["call"], "decision": "once"}
            refused = await server.http.post(f"/v1/assistant/{run}/confirm", json=answer, headers=stranger)
            assert refused.status_code == 404
            await server.confirm(run, call=asked["call"], decision="no")
            assert (await stream.rest())[-1] == "[DONE]"
        models = await server.http.get("/v1/models")
        assert models.status_code == 403, "scope workspace is not scope gateway"
        assert (await server.post("admin", **body, stream=False)).status_code == 200


async def test_a_session_is_of_the_tenant_that_began_it(tmp_path: Path) -> None:  # F43, W9
    async with serving(tmp_path, [Says("My PIN is 4711.")], keys=True) as server:
        body: dict[str, Any] = {"workspace": "project", "prompt": "x", "stream": False}
        begun = (await server.post("workspace", **body)).json()["session"]
        refused = [await server.post("other", **body, session=each) for each in (begun, "0" * 12)]
        assert [each.status_code for each in refused] == [404, 404]
        plain = [each.text.replace(begun, "0" * 12) for each in refused]
        assert plain[0] == plain[1], "as an unknown one"
        assert len(server.model.requests) == 1
        own = await server.post("other", **body)
        assert own.json()["session"] != begun
        assert (await server.post("workspace", **body, session=begun)).json()["session"] == begun
        local = Store(Root(server.root)).begin("terminal", "m")
        assert (await server.post("workspace", **body, session=local)).status_code == 404


async def test_a_workspace_may_be_of_one_tenant(tmp_path: Path) -> None:  # F43, W9
    async with serving(tmp_path, [Says("Hi.")], keys=True, tenant="t2") as server:
        body: dict[str, Any] = {"workspace": "project", "prompt": "x", "stream": False}
        refused = await server.post("workspace", **body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "workspace_unknown")
        assert (await server.post("other", **body)).status_code == 200


async def test_on_loopback_without_keys_any_header_will_do(tmp_path: Path) -> None:  # W9
    async with serving(tmp_path, [Says("Hi.")]) as server:
        server.http.headers["Authorization"] = "Bearer whatever"
        assert (await server.post(workspace="project", prompt="x", stream=False)).json()["content"] == "Hi."
        proxied = await server.http.post(
            "/v1/assistant",
            json={"workspace": "project", "prompt": "x"},
            headers={"X-Forwarded-For": "192.0.2.1"},
        )
        assert proxied.status_code in (401, 403)


async def test_runs_of_several_sessions_go_on_side_by_side(tmp_path: Path) -> None:  # W9
    async with serving(tmp_path, [Stalls(0.2, Says("Hi."))]) as server:
        waiting: list[Awaitable[httpx2.Response]] = [
            server.post(workspace="project", prompt=str(number), stream=False) for number in range(5)
        ]
        replies = await asyncio.gather(*waiting)
        assert {reply.json()["content"] for reply in replies} == {"Hi."}
        assert len({reply.json()["session"] for reply in replies}) == 5

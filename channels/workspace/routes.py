"""`POST /v1/assistant`: the assistant for other clients, by server-sent events (W9).

{workspace, session?, prompt, model?, stream}

data: {"run": id, "session": id}
data: {"content": text}
data: {"tool": {call, name, arguments, status, result?}}
data: {"confirm": {call, name, arguments, diff?}}      answered at POST /v1/assistant/{run}/confirm
data: {"error": {code, message}}                       instead of the end
data: [DONE]
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from adapters.models.factory import ConnectedModel
from channels.gateway import app
from channels.gateway.wire import DONE_FRAME, ApiError, frame, written
from channels.workspace import assistant
from channels.workspace.store import session_unknown
from channels.workspace.toolbox import Choice, Question
from flow_engine.documents.findings import breaches_of
from flow_engine.errors import FlowEngineError

LOCAL_TENANT: Final = "default"
"""Of whoever needs no key."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    workspace: str
    prompt: str = Field(min_length=1)
    session: str | None = None
    model: str | None = None
    stream: bool = True


class _Decision(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    call: str
    decision: Literal["once", "session", "no"]


async def _read(http: Request, kind: type[Any]) -> Any:
    """Raises ApiError 400 that names every field that is wrong."""
    try:
        return kind.model_validate_json(await app.read_body(http))
    except ValidationError as error:
        raise ApiError(400, "; ".join(breaches_of(error)), code="invalid_body") from None


class _Nobody:
    async def decide(self, question: Question) -> Choice:
        return "no"


@dataclass(slots=True)
class _Run:
    """A run of one caller; it is the person that its tools ask."""

    tenant: str
    frames: asyncio.Queue[assistant.Frame]
    questions: dict[str, asyncio.Future[Choice]] = field(default_factory=dict[str, "asyncio.Future[Choice]"])

    async def decide(self, question: Question) -> Choice:
        """Waits until it is answered; a client that goes away cancels the run."""
        asked = {"call": question.call, "name": question.name, "arguments": dict(question.arguments)}
        if question.diff is not None:
            asked["diff"] = question.diff
        answer = self.questions[question.call] = asyncio.get_running_loop().create_future()
        await self.frames.put({"confirm": asked})
        try:
            return await answer
        finally:
            del self.questions[question.call]


@dataclass(frozen=True, slots=True)
class Offered:
    """A workspace that may be named, by clients of `tenant` alone where that is set."""

    open: Callable[[], assistant.Workspace]
    tenant: str | None = None


ModelFor = Callable[[str, app.Principal], ConnectedModel]
"""A model by its public name, paid for by the caller. Raises CallTheOperator for a name that cannot be
asked."""


class AssistantRoutes:
    """The routes of scope `workspace`. `workspaces` are opened when they are first named. A session is of the
    tenant that began it; one that the terminal began, of `LOCAL_TENANT`."""

    def __init__(
        self,
        workspaces: Mapping[str, Offered],
        model_for: ModelFor,
        default_model: str | None,
        doorkeeper: app.Doorkeeper,
        heartbeat_s: float,
    ) -> None:
        self._workspaces = workspaces
        self._model_for = model_for
        self._default_model = default_model
        self._doorkeeper = doorkeeper
        self.heartbeat_s = heartbeat_s
        self._open: dict[str, assistant.Workspace] = {}
        self._busy: dict[tuple[str, str], str] = {}
        """The run that has each session."""
        self._runs: dict[str, _Run] = {}

    def close(self) -> None:
        for workspace in self._open.values():
            workspace.close()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/assistant", self._guarded(self._assist), methods=["POST"]),
            Route("/v1/assistant/{run}/confirm", self._guarded(self._confirm), methods=["POST"]),
        ]

    def _guarded(self, handler: Callable[[Request, app.Principal], Awaitable[Any]]) -> Any:
        async def handle(request: Request) -> Any:
            try:
                return await handler(request, app.admitted(self._doorkeeper, request, "workspace"))
            except ApiError as error:
                return app.error_response(error)

        return handle

    async def _confirm(self, http: Request, caller: app.Principal) -> Response:
        decision: _Decision = await _read(http, _Decision)
        run = self._runs.get(http.path_params["run"])
        question = run.questions.get(decision.call) if run and run.tenant == caller.tenant_id else None
        if question is None or question.done():
            raise ApiError(404, "there is no such question", code="question_unknown")
        question.set_result(decision.decision)
        return Response(
            written({"call": decision.call, "decision": decision.decision}), media_type="application/json"
        )

    async def _assist(self, http: Request, caller: app.Principal) -> Any:
        body: _Body = await _read(http, _Body)
        offered = self._workspaces.get(body.workspace)
        if offered is None or offered.tenant not in (None, caller.tenant_id):
            raise ApiError(
                404, f"there is no workspace {body.workspace!r}", param="workspace", code="workspace_unknown"
            )
        name = body.model or self._default_model
        if name is None:
            raise ApiError(
                400, "name a model: the operator has set none", param="model", code="model_missing"
            )
        try:
            model = self._model_for(name, caller)
        except FlowEngineError:
            raise ApiError(
                404, f"the model {name!r} does not exist here", param="model", code="model_not_found"
            ) from None
        async with AsyncExitStack() as unless_begun:
            unless_begun.push_async_callback(model.aclose)
            workspace, session = self._session(offered, body, name, caller.tenant_id)
            if (body.workspace, session) in self._busy:
                raise ApiError(409, "another run is under way in this session", code="session_busy")
            run_id = self._busy[body.workspace, session] = uuid4().hex
            unless_begun.pop_all()
        return _Assistance(self, workspace, body, session, model, caller, run_id)

    def _session(
        self, offered: Offered, body: _Body, model: str, tenant: str
    ) -> tuple[assistant.Workspace, str]:
        try:
            workspace = self._open.get(body.workspace) or offered.open()
            self._open[body.workspace] = workspace
            if body.session is None:
                session = workspace.store.begin("gateway", model)
                workspace.store.describe(session, tenant=tenant)
                return workspace, session
            found = workspace.store.session(body.session)
            if found.metadata.get("tenant", LOCAL_TENANT) != tenant:
                raise session_unknown(body.session)
            return workspace, found.id
        except FlowEngineError as error:
            status = 404 if error.code == "session_unknown" else 500
            raise ApiError(status, error.detail, code=error.code) from None

    def free(self, workspace: str, session: str, run_id: str) -> None:
        """The session is not this run's any more."""
        if self._busy.get((workspace, session)) == run_id:
            del self._busy[workspace, session]

    async def run(
        self,
        workspace: assistant.Workspace,
        body: Any,
        session: str,
        model: ConnectedModel,
        caller: app.Principal,
        run_id: str,
    ) -> AsyncGenerator[assistant.Frame]:
        """The frames of one run, the last one `{"result": ...}` or `{"error": ...}`. Closing it cancels."""
        frames: asyncio.Queue[assistant.Frame] = asyncio.Queue(256)
        run = self._runs[run_id] = _Run(caller.tenant_id, frames)
        person = run if body.stream else _Nobody()

        async def work() -> None:
            try:
                done = await assistant.run_turn(workspace, model, session, body.prompt, person, frames.put)
                last: assistant.Frame = {"result": done}
            except assistant.TurnFailed as error:
                last = {"error": {"code": error.code, "message": str(error)}}
            except FlowEngineError as error:  # the database, or its disk
                last = {"error": {"code": error.code, "message": error.detail}}
            await frames.put(last)

        working, getting = asyncio.create_task(work()), asyncio.create_task(frames.get())
        try:
            yield {"run": run_id, "session": session}
            while True:
                await asyncio.wait((getting, working), return_when=asyncio.FIRST_COMPLETED)
                if not getting.done() and frames.empty():
                    working.result()
                    return
                got = await getting
                getting = asyncio.create_task(frames.get())
                yield got
                if "result" in got or "error" in got:
                    return
        finally:
            working.cancel()
            getting.cancel()
            await asyncio.gather(working, getting, return_exceptions=True)
            del self._runs[run_id]
            self.free(body.workspace, session, run_id)


@dataclass(frozen=True, slots=True)
class _Assistance:
    """An ASGI response that does its work while it is sent."""

    routes: AssistantRoutes
    workspace: assistant.Workspace
    body: _Body
    session: str
    model: ConnectedModel
    caller: app.Principal
    run_id: str

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        frames = self.routes.run(
            self.workspace, self.body, self.session, self.model, self.caller, self.run_id
        )
        out = app.EventStream(send, self.routes.heartbeat_s, dict)
        work = self._stream(out, frames) if self.body.stream else self._plain(scope, receive, send, frames)
        try:
            await app.watched(receive, work)
        except asyncio.CancelledError:  # the server stops, and has waited for this run long enough
            if not out.ended:
                await out.fail(app.stopping())
        finally:
            # Of a client that is gone at once no frame is ever asked for, and none ends.
            self.routes.free(self.body.workspace, self.session, self.run_id)
            await self.model.aclose()

    async def _stream(self, out: app.EventStream, frames: AsyncGenerator[assistant.Frame]) -> None:
        try:
            async with out.beating(), aclosing(frames):
                async for each in frames:
                    if "result" in each:
                        await out.write(DONE_FRAME, last=True)
                    else:
                        await out.write(frame(written(each)), last="error" in each)
        except Exception as error:  # noqa: BLE001  the edge: past it the stream has no end
            if not out.ended:
                await out.fail(app.logged_bug("/v1/assistant", error))

    async def _plain(
        self,
        scope: AsgiScope,
        receive: Receive,
        send: Send,
        frames: AsyncGenerator[assistant.Frame],
    ) -> None:
        response: Response | None = None
        async with aclosing(frames):
            async for each in frames:
                if "result" in each:
                    done: assistant.TurnResult = each["result"]
                    body = {
                        "run": self.run_id,
                        "session": self.session,
                        "content": done.content,
                        "tools": list(done.tools),
                    }
                    response = Response(written(body), media_type="application/json")
                elif "error" in each:
                    failed = each["error"]
                    own = failed["code"] in ("max_iterations_exceeded", "workspace_unusable")
                    status = 500 if own else 502
                    response = app.error_response(ApiError(status, failed["message"], code=failed["code"]))
        if response is not None:
            await response(scope, receive, send)

"""The chat's ASGI application: REST, probes, and the WebSocket (C12) with hello, messages, and a session's
frames without gap or double.

1. A user has one connection: a newer one, on any replica, takes over. The older is told, and closed with
   4001.
2. The frames come from the session's log. What the bus brings is sent when it is the next number; anything
   else is a reason to read the log, which happens every `RESYNC_S` too.
3. Nothing that a client sends ends the connection, but a frame that is too long, or binary, and a hello that
   is not allowed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from channels.chat import frames
from channels.chat.http import Doorkeeper, Endpoint, Principal, bug, http_problem, json_response, log, routes
from channels.chat.sessions import Sessions
from channels.chat.state import SessionState
from channels.chat.tokens import TokenHolder, Tokens
from flow_engine.errors import CorrectTheInput, FlowEngineError, LookElsewhere, RetryLater
from flow_engine.ports.chat import LoggedFrame, SessionRef, frames_topic
from flow_engine.ports.telemetry import Tracing
from flow_engine.values import JsonValue

HELLO_WITHIN_S = 15.0
RESYNC_S = 5.0
SEND_WITHIN_S = 30.0
MOST_UNREAD = 1_000
"""Frames about the connection alone that wait for the client to read."""

TAKEN_OVER = 4001
BAD_HELLO = 4400
NOT_ALLOWED = 4403
SESSION_UNKNOWN = 4004
BINARY = 1003
TRY_LATER = 1013


class _Closed(Exception):
    """The connection ends with this code, and before it with `frame`, JSON in UTF-8."""

    def __init__(self, code: int, frame: bytes | None = None) -> None:
        super().__init__(str(code))
        self.code = code
        self.frame = frame


class Connection:
    """From the upgrade to the close. `principal` was let in already. A client whose first frame is no valid
    hello within `HELLO_WITHIN_S` seconds is closed."""

    def __init__(self, socket: WebSocket, principal: Principal, sessions: Sessions) -> None:
        self._socket = socket
        self._principal = principal
        self._sessions = sessions
        self._news: asyncio.Queue[LoggedFrame | None] = asyncio.Queue()
        self._bare: asyncio.Queue[bytes] = asyncio.Queue()
        self._taken_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number: int | None = None
        self._newest = 0
        self._sent = 0
        self._is_stale = False
        self._writing_since: float | None = None

    async def serve(self) -> None:
        await self._socket.accept()
        try:
            hello = await self._hello()
            tenant_id = self._principal.tenant_id
            bus, store = self._sessions.bus, self._sessions.store
            users = f"users:{quote(tenant_id, safe='')}:{quote(hello.user, safe='')}"
            ref, state = await self._session(hello)
            heard, arrived = self._heard, self._arrived
            try:
                # A connection listens before it has a number: whoever gets a higher one is heard.
                await bus.listen(users, arrived)
                await bus.listen(frames_topic(ref), heard)
                self._number = await store.arrive(tenant_id, hello.user)
                self._sessions.observer.count("chat_connections")
                await bus.publish(users, b"%d" % self._number)
                await self._welcome(ref, state, hello)
                await self._talk(ref)
            finally:
                await bus.unlisten(frames_topic(ref), heard)
                await bus.unlisten(users, arrived)
        except _Closed as closed:
            await self._close(closed)
        except (WebSocketDisconnect, RuntimeError):
            pass  # the client has gone; its answer goes on
        except FlowEngineError as error:
            log.warning("connection_closed", code=error.code)
            await self._close(_Closed(TRY_LATER, _error(error.code, error.detail)))

    # Hello ------------------------------------------------------------------------------------------

    async def _hello(self) -> frames.Hello:
        """Raises _Closed for anything else, and for a user that the credential does not allow."""
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                frame = await self._received()
        except TimeoutError:
            raise _Closed(BAD_HELLO, _error("hello_missing", "the first frame is a hello")) from None
        except frames.BadFrame as bad:
            raise _Closed(BAD_HELLO, _bad(bad)) from None
        if not isinstance(frame, frames.Hello):
            raise _Closed(BAD_HELLO, _error("hello_missing", "the first frame is a hello"))
        if isinstance(self._principal, TokenHolder) and frame.user != self._principal.user:
            raise _Closed(NOT_ALLOWED, _error("user_not_allowed", "the token is another user's"))
        return frame

    async def _session(self, hello: frames.Hello) -> tuple[SessionRef, SessionState]:
        """Raises _Closed for a session that is unknown, or another user's."""
        tenant_id = self._principal.tenant_id
        if hello.session is None:
            ref = await self._sessions.create(tenant_id, hello.user, hello.language)
            return ref, SessionState(user=hello.user, language=hello.language)
        ref = SessionRef(tenant_id, hello.session)
        text = await self._sessions.store.load(ref)
        state = None if text is None else SessionState.read(text)
        if state is None or state.user != hello.user:
            raise _Closed(SESSION_UNKNOWN, _error("session_unknown", "the user has no such session"))
        return ref, state

    async def _welcome(self, ref: SessionRef, state: SessionState, hello: frames.Hello) -> None:
        """The welcome, then what was missed. Frames that come meanwhile wait in `_news`."""
        store, session = self._sessions.store, ref.session_id
        last = await store.last(ref)
        await self._send(frames.bare_frame("state", {"event": "welcome", "last_seq": last}, session=session))
        self._sent = last if hello.after is None else min(hello.after, last)
        missed = await store.after(ref, self._sent)
        if self._sent < last and (not missed or missed[0].seq > self._sent + 1):
            oldest = missed[0].seq if missed else last + 1
            history: list[JsonValue] = [turn.model_dump(mode="json") for turn in state.history]
            gap: dict[str, JsonValue] = {"event": "gap", "oldest_seq": oldest, "history": history}
            await self._send(frames.bare_frame("state", gap, session=session))
            self._sent = oldest - 1
        for frame in missed:
            await self._send_next(frame)

    # The talk ---------------------------------------------------------------------------------------

    async def _talk(self, ref: SessionRef) -> None:
        parts = (self._read(ref), self._write(ref), self._watch())
        tasks = {asyncio.create_task(part) for part in parts}
        try:
            done, _ = await asyncio.wait({*tasks, self._taken_over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._taken_over in done:
            raise _Closed(
                TAKEN_OVER, frames.bare_frame("state", {"event": "taken_over"}, session=ref.session_id)
            )
        for task in done:
            await task

    async def _read(self, ref: SessionRef) -> None:
        """Raises WebSocketDisconnect when the client goes, _Closed."""
        while True:
            try:
                frame = await self._received()
                sessions = self._sessions
                match frame:
                    case frames.UserMessage(id=message_id, content=content):
                        outcome = await sessions.submit(ref, message_id, content)
                        if outcome == "duplicate":
                            self._tell(
                                _error("duplicate", "a message with this id was taken already", message_id)
                            )
                        elif outcome == "busy":
                            self._tell(_error("busy", "too many messages wait for an answer", message_id))
                    case frames.Cancel(id=message_id):
                        await sessions.cancel(ref, message_id)
                    case frames.Confirm(call=call, decision=decision):
                        await sessions.confirm(ref, call, decision)
                    case frames.Hello():
                        self._tell(_error("hello_again", "the session has begun already"))
            except frames.BadFrame as bad:
                self._tell(_bad(bad))
            except RetryLater as away:
                self._tell(_error(away.code, away.detail))
            except LookElsewhere as unknown:
                raise _Closed(SESSION_UNKNOWN, _error(unknown.code, unknown.detail)) from None

    async def _write(self, ref: SessionRef) -> None:
        while True:
            frame = await self._news.get()
            self._writing_since = asyncio.get_running_loop().time()
            while not self._bare.empty():
                await self._socket.send_text(self._bare.get_nowait().decode())
            if frame is not None and frame.seq == self._sent + 1:
                await self._socket.send_text(frames.numbered(frame).decode())
                self._sent = frame.seq
            elif self._is_stale or (frame is not None and frame.seq > self._sent):
                self._is_stale = False
                with suppress(RetryLater):  # asked again at the next resync
                    for missed in await self._sessions.store.after(ref, self._sent):
                        await self._send_next(missed)
            self._writing_since = None

    async def _watch(self) -> None:
        """Has the log read every `RESYNC_S` seconds in which no frame came. Raises _Closed where the client
        does not read for `SEND_WITHIN_S`."""
        while True:
            before = self._sent
            await asyncio.sleep(RESYNC_S)
            since = self._writing_since
            if since is not None and asyncio.get_running_loop().time() - since > SEND_WITHIN_S:
                raise _Closed(TRY_LATER)
            if self._sent == before:
                self._is_stale = True
                self._news.put_nowait(None)

    async def _send_next(self, frame: LoggedFrame) -> None:
        if frame.seq > self._sent:
            await self._send(frames.numbered(frame))
            self._sent = frame.seq

    # Wire -------------------------------------------------------------------------------------------

    def _heard(self, message: bytes) -> None:
        self._news.put_nowait(LoggedFrame.heard(message))

    def _arrived(self, number: bytes) -> None:
        self._newest = max(self._newest, int(number))
        if self._number is not None and self._newest > self._number and not self._taken_over.done():
            self._taken_over.set_result(None)

    def _tell(self, frame: bytes) -> None:
        """Raises _Closed where the client sends on and reads nothing of what it is told."""
        if self._bare.qsize() >= MOST_UNREAD:
            raise _Closed(TRY_LATER)
        self._bare.put_nowait(frame)
        self._news.put_nowait(None)

    async def _received(self) -> frames.ClientFrame:
        """Raises BadFrame, _Closed, WebSocketDisconnect."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text = message.get("text")
        if text is None:
            raise _Closed(BINARY)
        return frames.read_frame(text)

    async def _send(self, frame: bytes) -> None:
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                await self._socket.send_text(frame.decode())
        except TimeoutError:
            raise _Closed(TRY_LATER) from None

    async def _close(self, closed: _Closed) -> None:
        try:
            if closed.frame is not None:
                await self._send(closed.frame)
            if self._socket.application_state is WebSocketState.CONNECTED:
                await self._socket.close(closed.code)
        except (_Closed, WebSocketDisconnect, RuntimeError):
            pass  # gone meanwhile


def _error(code: str, message: str, id: str | None = None) -> bytes:
    return frames.bare_frame("error", {"code": code, "message": message}, id=id)


def _bad(bad: frames.BadFrame) -> bytes:
    finding = bad.finding
    content: dict[str, JsonValue] = {
        "code": "frame_invalid" if finding.code != "json_invalid" else "json_invalid",
        "message": finding.message,
        "pointer": finding.pointer,
    }
    return frames.bare_frame("error", content)


SOCKET_PATH = "/v1/chat/ws"
REFUSED = 4401
"""The close code of a refused upgrade; on the wire it is the status 403."""

Probe = Callable[[], Awaitable[object]]


def chat_app(
    endpoints: Sequence[Endpoint],
    sessions: Sessions,
    tokens: Callable[[], Awaitable[Tokens]],
    doorkeeper: Doorkeeper,
    probes: Mapping[str, Probe],
    scrape: Callable[[], Response],
    tracing: Tracing,
) -> Starlette:
    """`probes` by the name of what they look at; one raises FlowEngineError while that is away. `scrape`
    gives the metrics."""

    async def socket(websocket: WebSocket) -> None:
        principal = await _admitted(websocket, tokens, doorkeeper)
        if principal is not None:
            await Connection(websocket, principal, sessions).serve()

    async def ready(request: Request) -> Response:
        verdicts = {name: await _verdict(probe) for name, probe in probes.items()}
        wrong = {name: verdict for name, verdict in verdicts.items() if verdict is not None}
        checks = {name: verdict.detail if verdict else "ok" for name, verdict in verdicts.items()}
        is_ready = not wrong
        if not is_ready:
            reasons = {name: verdict.reason for name, verdict in wrong.items() if verdict.reason}
            log.warning("not_ready", **{name: checks[name] for name in wrong}, reasons=reasons)
        reply = {"status": "ok" if is_ready else "unavailable", "checks": checks}
        return json_response(reply, 200 if is_ready else 503, {} if is_ready else {"Retry-After": "1"})

    async def metrics(request: Request) -> Response:
        return scrape()

    async def live(request: Request) -> Response:
        return json_response({"status": "ok"})

    return Starlette(
        routes=[
            *routes(endpoints, doorkeeper, sessions.observer, tracing),
            WebSocketRoute(SOCKET_PATH, socket),
            Route("/health/ready", ready),
            Route("/metrics", metrics),
            Route("/health/live", live),
        ],
        exception_handlers={HTTPException: http_problem, Exception: bug},
    )


async def _admitted(
    websocket: WebSocket, tokens: Callable[[], Awaitable[Tokens]], doorkeeper: Doorkeeper
) -> Principal | None:
    """None for who is refused, or is told to come later since the stores are away."""
    try:
        doorkeeper.check(websocket)
        # A query never holds an API key: those stand in logs.
        token = websocket.query_params.get("token")
        if token is None:
            return doorkeeper.admit(websocket, ("chat",))
        return (await tokens()).holder(token)
    except CorrectTheInput as refusal:
        log.info("socket_refused", code=refusal.code)
        await websocket.close(REFUSED)
    except RetryLater as away:
        log.warning("connection_closed", code=away.code)
        await websocket.accept()
        await websocket.send_text(_error(away.code, away.detail).decode())
        await websocket.close(TRY_LATER)
    return None


async def _verdict(probe: Probe) -> FlowEngineError | None:
    try:
        await probe()
    except FlowEngineError as error:
        return error
    return None

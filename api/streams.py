"""Server-sent events: how what is followed, a journal or a list of conversations, goes over HTTP.

An entry of a journal is an event without a name, `id` its `seq` and `data` its JSON. A change of a list is
one too, without an id, its data `{"conversations": [rows], "gone": [ids]}`. A comment every KEEP_ALIVE_S
seconds keeps proxies from cutting a quiet stream. The last event is `end`, its data `{"reason": …}`.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, aclosing
from typing import Any

import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flow_engine.use_cases.following import Followed, ListFollowed

EVENT_STREAM = "text/event-stream"
KEEP_ALIVE_S = 15.0
TAKEN_WITHIN_S = 30.0
"""A client that does not take what is sent for so long is given up."""
NOT_TAKEN, HEAD_ALONE = "not_taken", "head_alone"

_WEIGHT = re.compile(r"[01](\.[0-9]{0,3})?")
_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}

log: Any = structlog.get_logger("flow_engine.http")


def weights_of(accepted: str) -> Mapping[str, float]:
    """What an `Accept` or an `Accept-Encoding` names, in lower case, each with its weight from 0, which is a
    refusal, to 1 (RFC 9110)."""
    found: dict[str, float] = {}
    for each in accepted.lower().replace(" ", "").split(","):
        name, *parameters = each.split(";")
        told = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        found[name] = float(told) if _WEIGHT.fullmatch(told) else 1.0
    return found


def prefers_events(accept: str) -> bool:
    """Whether an `Accept` asks for events, and for JSON no more than for them."""
    weights = weights_of(accept)
    events = weights.get(EVENT_STREAM, 0.0)
    return events > 0 and events >= weights.get("application/json", 0.0)


def _events(part: Followed | ListFollowed) -> bytes:
    if isinstance(part, Followed):
        return b"".join(b"id: %d\ndata: %b\n\n" % (row["seq"], orjson.dumps(row)) for row in part.rows)
    if not (part.rows or part.gone or part.first):
        return b""
    return b"data: %b\n\n" % orjson.dumps({"conversations": part.rows, "gone": part.gone})


class EventStream(Response):
    """Open until what is followed ends, or the client has gone. It counts as open within `opened`."""

    def __init__(
        self, followed: AsyncGenerator[Followed | ListFollowed], opened: AbstractContextManager[object]
    ) -> None:
        super().__init__(headers=_HEADERS, media_type=EVENT_STREAM)
        del self.headers["content-length"]
        self._followed = followed
        self._opened = opened
        self._entries = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, reason = time.monotonic(), "client_gone"
        asked_for = HEAD_ALONE if scope.get("method") == "HEAD" else None
        writing = asyncio.create_task(self._write(send, asked_for))
        gone = asyncio.create_task(_gone(receive))
        try:
            with self._opened:
                await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, gone):
                task.cancel()
            await asyncio.wait({writing, gone})
        if not writing.cancelled():
            reason = writing.result()
        abort = scope.get("state", {}).get("abort")
        if reason == NOT_TAKEN and abort is not None:  # of the server's door
            abort()
            await _gone(receive)
        seconds = round(time.monotonic() - began, 1)
        log.info("stream_ended", reason=reason, entries=self._entries, seconds=seconds)

    async def _write(self, send: Send, ended: str | None) -> str:
        """Why it ended; `ended` where it does before anything is followed."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        text, kept_alive_at = b": open\n\n", time.monotonic()
        async with aclosing(self._followed) as followed:
            while True:
                if text:
                    try:
                        async with asyncio.timeout(TAKEN_WITHIN_S):
                            await send(
                                {"type": "http.response.body", "body": text, "more_body": ended is None}
                            )
                    except TimeoutError:
                        return NOT_TAKEN
                    kept_alive_at = time.monotonic()
                if ended is not None:
                    return ended
                part = await anext(followed)
                ended, self._entries = part.ended, self._entries + len(part.rows)
                text = _events(part)
                if ended is not None:
                    text += b"event: end\ndata: %b\n\n" % orjson.dumps({"reason": ended})
                elif not text and time.monotonic() - kept_alive_at >= KEEP_ALIVE_S:
                    text = b": nothing new\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

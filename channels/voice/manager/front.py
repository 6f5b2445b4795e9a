"""One address for all agents of a manager: `/<id>/…` is the agent's, `/incoming-call` is whose number it is.

0. Of a head there are at most 64 KiB (431), and it is whole within 10 s (408).
1. A connection is joined to the agent that its first request names, without the id in the path; everything
   after the head passes as it comes, so that a WebSocket does too. HTTP connections are closed after one
   exchange: the next request may be for another agent.
2. What passes here is marked as forwarded (`X-Forwarded-For`), so that an agent takes nothing of it for a
   request of this machine: none of `/drain`, `/metrics` and `/calls` can be reached from outside.
3. `/health/ready` is answered here: 503 until the list of agents has been read for the first time. Till then
   a call is told to be busy, and what is asked of an agent is answered with 503.
4. A call offered at `/incoming-call` itself is redirected to the address of the agent whose `phoneNumber` it
   is for, by what the carrier's request says. Nothing is checked and nothing told beside that address: the
   carrier signs the request that follows, and the agent checks that.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
import structlog

from adapters.http_door import problem
from channels.voice.carriers.carrier import AskElsewhere, CallDocuments, Instruction, Reject
from flow_engine.errors import CorrectTheInput
from flow_engine.values import whole_number_in

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024
HEAD_WITHIN_S = 10.0
CONNECT_WITHIN_S = 5.0
LINGER_S = 2.0
CHUNK_BYTES = 64 * 1024

_REQUEST_LINE = re.compile(rb"([A-Z]+) (/[^ ]*) HTTP/1\.1")
_OWN_HEADERS = (b"connection:", b"x-forwarded-for:", b"forwarded:")

log: Any = structlog.get_logger("flow_engine.voice.manager")


@dataclass(frozen=True, slots=True)
class Route:
    """Where an agent is: its port on this machine, and its public address, None when that is not known."""

    port: int
    public_url: str | None


@dataclass(frozen=True, slots=True)
class Routes:
    """`by_id` finds an agent by its id, `by_number` by the phone number that was called; None for none.
    `unread` says why no list of agents has been read; None once one has."""

    by_id: Callable[[str], Route | None]
    by_number: Callable[[str], Route | None]
    unread: Callable[[], str | None] = lambda: None


class Front:
    """Serves connections of carriers on one port. `routes` are looked up for each of them; what has none is
    refused with status 404 or 503, in a problem document (RFC 9457)."""

    def __init__(self, routes: Routes, carrier: CallDocuments) -> None:
        self._routes = routes
        self._carrier = carrier

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Returns when the connection has ended."""
        try:
            await self._serve(reader, writer)
        except _Refused as refused:
            await _told(reader, writer, problem(*refused.args))
        except asyncio.LimitOverrunError:
            detail = f"request line and headers have at most {MAX_HEAD_BYTES} bytes"
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            await _told(reader, writer, problem(status, "head_too_large", detail))
        except TimeoutError:
            detail = f"head and body have to be whole within {HEAD_WITHIN_S:g} s each"
            await _told(reader, writer, problem(HTTPStatus.REQUEST_TIMEOUT, "head_late", detail))
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever it was has gone, or is no HTTP client
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
        line, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        request = _REQUEST_LINE.fullmatch(line)
        if request is None:
            raise _Refused(HTTPStatus.BAD_REQUEST, "request_invalid", "HTTP/1.1 and a path are needed")
        method, target = request[1], request[2]
        path, mark, query = target.partition(b"?")
        unread = self._routes.unread()
        if path == b"/health/ready":
            ready = {"status": "unavailable" if unread else "ok", "checks": {"agentsList": unread or "ok"}}
            writer.write(_response(503 if unread else 200, "application/json", orjson.dumps(ready)))
            return
        if path.rstrip(b"/") == b"/incoming-call":
            named = (header.partition(b":") for header in headers)
            lengths = [value.strip() for name, _, value in named if name.strip().lower() == b"content-length"]
            length = whole_number_in(lengths[0].decode("latin-1")) if lengths else 0
            if length is None:
                detail = "Content-Length is the number of the body's bytes, in digits"
                raise _Refused(HTTPStatus.BAD_REQUEST, "request_invalid", detail)
            async with asyncio.timeout(HEAD_WITHIN_S):
                body = await reader.readexactly(length) if length <= MAX_BODY_BYTES else b""
            document = self._carrier.answer(self._instruction(body or query))
            writer.write(_response(200, document.media_type, document.text.encode()))
            return
        agent_id, _, rest = path[1:].partition(b"/")
        route = self._routes.by_id(agent_id.decode("latin-1"))
        if route is None and unread is not None:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "agents_unknown", "no agent is known yet")
        if route is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "agent_unknown", "no agent is there")
        line = b"%b /%b%b%b HTTP/1.1" % (method, rest, mark, query)
        # The head as the agent gets it.
        address: tuple[str, int] | None = writer.get_extra_info("peername")
        peer = address[0] if address else "unknown"
        kept = [header for header in headers if not header.lower().startswith(_OWN_HEADERS)]
        upgrades = any(header.lower().startswith(b"upgrade:") for header in headers)
        own = [
            # What is no WebSocket is one exchange, `Upgrade` or not: nobody marks what comes behind it.
            b"Connection: upgrade, close" if upgrades else b"Connection: close",
            b"X-Forwarded-For: " + peer.encode(),
        ]
        await _joined(reader, writer, route.port, b"\r\n".join((line, *kept, *own, b"", b"")))

    def _instruction(self, form: bytes) -> Instruction:
        try:
            number = self._carrier.called_number(form)
        except CorrectTheInput:
            number = None
        route = None if number is None else self._routes.by_number(number)
        if route is None and (unread := self._routes.unread()) is not None:
            log.error("call_not_routed", reason=unread)
            return Reject("busy")
        if route is None or route.public_url is None:
            log.warning("call_not_routed", reason="no agent has the number that was called")
            return Reject("unknown_number")
        return AskElsewhere(f"{route.public_url}/incoming-call")


class _Refused(Exception):
    """Status, code and detail of what the client is told, before anything else was."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(status, code, detail)


async def _told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes) -> None:
    """What is still sent is thrown away for a while: a reset would take the reply from the client."""
    with suppress(OSError):
        writer.write(reply)
        writer.write_eof()
        async with asyncio.timeout(LINGER_S):
            while await reader.read(CHUNK_BYTES):
                pass


async def _joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, head: bytes) -> None:
    """Returns when both ways have ended: the end of one is passed on, and ends the other. Raises _Refused
    where the agent is away."""
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            agent_reader, agent_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        away = _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "agent_away", "the agent does not answer")
        raise away from None
    agent_writer.write(head)
    try:
        there = asyncio.create_task(_copied(reader, agent_writer))
        await _copied(agent_reader, writer)
        there.cancel()
        await asyncio.wait({there})
    finally:
        agent_writer.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A connection that breaks ends as one that is closed."""
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()


def _response(status: int, media_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {media_type}\r\n"
    return head.encode() + b"Content-Length: %d\r\n" % len(body) + b"Connection: close\r\n\r\n" + body

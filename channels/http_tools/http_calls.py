"""The requests of a config, sent over the guarded client and logged (V6, V8, V14).

1. A reply is the JSON of its body, an integer beyond 64 bits in it the text of its digits; an empty body is
   null, a body that is not JSON is its text. JSON of very many values is no usable reply, as its paths
   would be looked for for seconds. Any status from 300 on fails (redirects that may be followed have been),
   as does whatever is no usable reply.
2. Reasons of a failure go to a model and to callers: they name no address, no number, no content.
3. The log tells method, address, status and time. Of the address no value that a call puts into its path or
   its query and nothing that looks like a phone number; what was sent is logged at the level debug only.
"""

import re
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import orjson
import structlog

from channels.http_tools import documents, placeholders, templates
from channels.http_tools.scope import Scope
from flow_engine.json_values import read_answer
from flow_engine.ports.outbound import (
    OutboundFailed,
    OutboundRefused,
    OutboundReply,
    OutboundSender,
    is_header_text,
)
from flow_engine.values import JsonValue

_log: Any = structlog.get_logger("flow_engine.agents.http")

_LEAST_ERROR: Final = 300
_HEADERS: Final[Mapping[str, str]] = {"Accept": "application/json"}
_BODY_HEADERS: Final[Mapping[str, str]] = {"Content-Type": "application/json"}
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PHONE_LIKE = re.compile(r"\+?[0-9](?:[\s().\-/]*[0-9]){6,}")


class CallFailed(Exception):
    """A request without a usable reply. `reason` may be shown to anybody, `detail`, which may name a host, to
    the operator; `status` and `reply`, JSON, are those of a reply that is an error, None without one."""

    def __init__(
        self, reason: str, status: int | None = None, reply: JsonValue = None, *, detail: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail or reason
        self.status = status
        self.reply = reply


@dataclass(frozen=True, slots=True)
class _Prepared:
    """`shown` is the URL for the log."""

    url: str
    shown: str
    headers: Mapping[str, str]
    content: bytes


class HttpCaller:
    """Sends the requests of one call. `log_fields` stand on every line of its log: `agent_id`, `call_id`. One
    that `must_arrive` goes without a header that cannot be written. `monotonic` gives seconds."""

    def __init__(
        self,
        outbound: OutboundSender,
        log_fields: Mapping[str, str],
        *,
        must_arrive: bool = False,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._outbound = outbound
        self._must_arrive = must_arrive
        self.log_fields = log_fields
        self.monotonic = monotonic

    async def send(
        self, request: documents.HttpRequest, scope: Scope, *, body: JsonValue = None
    ) -> JsonValue:
        """The JSON of the reply, its text where it is no JSON, None where it is empty. `body` stands in for
        the request's own one. Raises CallFailed after `timeout_s` seconds, for a status from 300 on, for an
        address that is not allowed, and for a request that cannot be written."""
        prepared = self._prepared(request, scope, body)
        _log.debug("http_request", url=prepared.url, body=prepared.content.decode(), **self.log_fields)
        started = self.monotonic()
        status: int | None = None
        outcome: JsonValue | CallFailed = CallFailed("nobody waited for the reply any longer")
        try:
            status, outcome = await self._exchange(request, prepared)
        finally:  # one that is cancelled has its line too: the other side may have taken it
            fields: dict[str, object] = {
                "method": request.method,
                "url": prepared.shown,
                "status": status,
                "duration_ms": round((self.monotonic() - started) * 1000),
                **self.log_fields,
            }
            if isinstance(outcome, CallFailed):
                _log.warning("http_call", reason=outcome.detail, **fields)
            else:
                _log.info("http_call", **fields)
        if isinstance(outcome, CallFailed):
            raise outcome
        return outcome

    def _prepared(self, request: documents.HttpRequest, scope: Scope, body: JsonValue) -> _Prepared:
        params = request.params.render(scope) if request.params else None
        try:
            pairs = params.items() if isinstance(params, dict) else ()
            url, shown = (each.render(scope, pairs) for each in (request.url, request.url.masked(scope)))
        except templates.Unresolved as error:
            raise CallFailed(f"the request needs a value for {error.placeholder}") from error
        if body is None and request.body is not None:
            body = request.body.render(scope)
        try:
            content = b"" if body is None else orjson.dumps(body)
        except orjson.JSONEncodeError as error:
            raise CallFailed("the request cannot be written as JSON") from error
        shown = masked_url(shown, placeholders.as_text(scope.lookup(("caller_phone",))))
        headers = {**_HEADERS, **(_BODY_HEADERS if content else {}), **self._headers(request, scope)}
        return _Prepared(url, shown, headers, content)

    def _headers(self, request: documents.HttpRequest, scope: Scope) -> dict[str, str]:
        own = ((name, template.render(scope)) for name, template in request.headers.items())
        headers = {name: placeholders.as_text(value).strip() for name, value in own if value is not None}
        for name in [name for name, text in headers.items() if not is_header_text(text)]:
            reason = f"the request cannot be written: header {name!r} takes one line of ASCII"
            if not self._must_arrive:
                raise CallFailed(reason)
            _log.warning("header_left_out", reason=reason, **self.log_fields)
            del headers[name]
        return headers

    async def _exchange(
        self, request: documents.HttpRequest, prepared: _Prepared
    ) -> tuple[int | None, JsonValue | CallFailed]:
        """The status, None without a reply, and what came of it."""
        try:
            reply = await self._outbound.request(
                request.method,
                prepared.url,
                timeout_s=request.timeout_s,
                headers=prepared.headers,
                content=prepared.content,
            )
        except OutboundRefused as refused:
            return None, CallFailed("the address is not allowed", detail=str(refused))
        except OutboundFailed as error:
            late = isinstance(error.__cause__, TimeoutError)
            reason = (
                f"no reply within {request.timeout_s:g} s" if late else "the service gave no usable reply"
            )
            return None, CallFailed(reason, detail=str(error))
        read = _read(reply)
        if reply.status < _LEAST_ERROR:
            return reply.status, read
        body = None if isinstance(read, CallFailed) else read
        reason = f"the service answered with status {reply.status}"
        return reply.status, CallFailed(reason, reply.status, body)


def masked_url(url: str, caller: str = "") -> str:
    """The URL without user information and the values of its query, and with `***` for whatever looks like a
    phone number in its path, or has the digits of the caller's; `***` alone for an invalid one."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that belong to no IPv6 address
        return templates.MASK
    host = parts.netloc.rpartition("@")[2]
    path = "/".join(_masked_segment(segment, caller) for segment in parts.path.split("/"))
    names = [_masked_segment(pair.partition("=")[0], caller) for pair in parts.query.split("&") if pair]
    query = "?" + "&".join(f"{name}={templates.MASK}" for name in names) if names else ""
    return f"{parts.scheme}://{host}{path}{query}"


def _masked_segment(segment: str, caller: str) -> str:
    text = unquote(segment)
    if _UUID.fullmatch(text):
        return segment
    if _digits(caller) and _digits(text) == _digits(caller):
        return templates.MASK
    masked = _PHONE_LIKE.sub(templates.MASK, text)
    return segment if masked == text else quote(masked, safe="*+:@()")


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdecimal())


def _read(reply: OutboundReply) -> JsonValue | CallFailed:
    body = reply.body.removeprefix(BOM_UTF8)  # which many a service writes before its JSON
    if not body.strip():
        return None
    try:
        return read_answer(body)
    except orjson.JSONDecodeError:
        try:
            return body.decode()
        except UnicodeDecodeError:
            return CallFailed("the reply cannot be read", reply.status)
    except ValueError as error:
        return CallFailed("the reply cannot be read", reply.status, detail=f"the reply has {error}")

"""One call of an endpoint: who calls, with which body and key, and the endpoint as a row of a table.

Endpoints are rows: route, scope, shapes and handler stand in one place, from which come the routes, the
OpenAPI document, and the tests that go through all of them. Handlers answer with ready bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec
import orjson
from pydantic import TypeAdapter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from api.auth import Principal, Scope, header
from api.bodies import MOST_FINDINGS, parse_body
from flow_engine.documents import parse_date_time
from flow_engine.documents.findings import nearest
from flow_engine.errors import CorrectTheInput, Finding, RetryLater
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.dialogue import ActedOn, ConversationRef
from flow_engine.ports.telemetry import IDS_LOGGED
from flow_engine.values import whole_number_in

PREFIX = "/v1"
MAX_KEY_LENGTH = 255
FLOW_VERSION, NEW_FLOW_VERSION = "FlowVersion", "NewFlowVersion"
"""Schemas of the OpenAPI document, named by `$comment`, that stand for the one that the product publishes."""
JSON = "application/json"

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter, a header, or what of the path is no plain text, as the OpenAPI document tells it."""

    name: str
    description: str
    schema: Mapping[str, object] = field(default_factory=lambda: {"type": "string"})
    place: Literal["query", "header", "path"] = "query"
    required: bool = False
    check: Callable[[str], object] | None = None
    """What a schema does not say. Raises CorrectTheInput."""
    look_up: Callable[[str, str], Awaitable[object]] | None = None
    """What only a store knows of a tenant and a value. Raises CorrectTheInput, RetryLater."""


FLAG: Mapping[str, object] = {"type": "boolean"}
MOMENT: Mapping[str, object] = {"type": "string", "format": "date-time"}


def whole(least: int, most: int) -> Mapping[str, object]:
    """The schema of a parameter that is a whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


def one_of(names: Sequence[str]) -> Mapping[str, object]:
    """The schema of a parameter with a choice."""
    return {"type": "string", "enum": list(names)}


class Call(msgspec.Struct, frozen=True):
    """`scope` and `receive` are ASGI's; nothing of them is worked out before it is asked for."""

    scope: AsgiScope
    receive: Receive
    principal: Principal
    body: bytes

    @property
    def request(self) -> Request:
        return Request(self.scope, self.receive)

    @property
    def tenant_id(self) -> str:
        return self.principal.tenant_id

    def path(self, name: str) -> str:
        return self.scope["path_params"][name]

    def query(self, name: str) -> str | None:
        query: bytes = self.scope["query_string"]
        return QueryParams(query).get(name) if query else None

    def parse(self, shape: TypeAdapter[_Parsed]) -> _Parsed:
        return parse_body(self.body, shape)

    def conversation(self, conversation_id: str, contact_id: str | None = None) -> ConversationRef:
        """The conversation of this caller's tenant; from here on its ids stand in every log line."""
        IDS_LOGGED.set({"conversation_id": conversation_id, "contact_id": contact_id})
        principal = self.principal
        return ActedOn(principal.tenant_id, conversation_id, principal.name)

    @property
    def fingerprint(self) -> str:
        """What makes two requests the same: route without its version prefix, query and body. SHA-256 over
        the bytes, in hexadecimal digits."""
        scope = self.scope
        path, query = scope["path"].removeprefix(PREFIX), scope["query_string"].decode("latin-1")
        digest = hashlib.sha256(f"{scope['method']} {path}?{query}\n".encode("utf-8", "surrogatepass"))
        digest.update(self.body)
        return digest.hexdigest()

    @property
    def idempotency(self) -> IdempotencyKey | None:
        key = header(self.scope["headers"], b"idempotency-key")
        if key is None:
            return None
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise CorrectTheInput.breach(
                "idempotency_key_invalid", f"an Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters"
            )
        return IdempotencyKey(key, self.fingerprint)

    async def refuse_wrong_parameters(self, known: Mapping[str, Parameter]) -> None:
        """Raises CorrectTheInput with every parameter of the query that there is none of, as
        `parameter_unknown` naming what it may have meant, every one that is given more than once, as
        `parameter_repeated`, and every value that cannot be read, as `<name>_invalid`. What a store has to be
        asked for is told beside them; alone, by the handler. Of more than 100 the first are told."""
        given = Counter(name for name, _ in QueryParams(self.scope["query_string"]).multi_items())
        wrong = (found for name, times in given.items() for found in self._wrong(name, known, times=times))
        findings = list(islice(wrong, MOST_FINDINGS))
        if findings:
            findings += [finding for name in given for finding in await self._unknown(known.get(name))]
            raise CorrectTheInput(findings[0].code, findings[0].message, findings)

    async def _unknown(self, parameter: Parameter | None) -> Sequence[Finding]:
        if parameter is None or parameter.look_up is None:
            return ()
        try:
            await parameter.look_up(self.tenant_id, self.query(parameter.name) or "")
        except CorrectTheInput as wrong:
            return wrong.findings
        except RetryLater:  # the request is wrong as it is
            pass
        return ()

    def _wrong(self, name: str, known: Mapping[str, Parameter], *, times: int) -> Sequence[Finding]:
        if name not in known:
            message = f"{name!r} is no query parameter here; {nearest(name, list(known))}"
            return (Finding("", "parameter_unknown", message),)
        if times > 1:  # one of them would count, and the others be passed over without a word
            message = f"{name!r} is given {times} times; accepted is one"
            return (Finding("", "parameter_repeated", message),)
        schema = cast("Mapping[str, Any]", known[name].schema)
        check = known[name].check
        try:
            if check is not None:
                check(self.query(name) or "")
            elif "enum" in schema:
                self.choice(name, tuple(schema["enum"]))
            elif schema["type"] == "integer":
                least, most = schema["minimum"], schema["maximum"]
                whole_number(name, self.query(name) or "", at_least=least, at_most=most)
            elif schema["type"] == "boolean":
                self.flag(name)
            elif schema.get("format") == "date-time":
                self.moment(name)
        except CorrectTheInput as wrong:
            return wrong.findings
        return ()

    def has_seen(self, etag: str) -> bool:
        """Whether `If-None-Match` names the ETag, or `*` (RFC 9110, weak comparison)."""
        named = header(self.scope["headers"], b"if-none-match")
        if named is None:
            return False
        known = [each.strip() for each in named.split(",")]
        return "*" in known or etag in (each.removeprefix("W/") for each in known)

    def whole_number(self, name: str, *, at_most: int) -> int:
        """0 where it is not given."""
        text = self.query(name)
        return 0 if text is None else whole_number(name, text, at_least=0, at_most=at_most)

    def limit(self, default: int, *, at_most: int) -> int:
        """How many rows are asked for: from 1 on."""
        text = self.query("limit")
        return default if text is None else whole_number("limit", text, at_least=1, at_most=at_most)

    def flag(self, name: str, *, default: bool = False) -> bool:
        text = self.query(name)
        if text not in (None, "true", "false"):
            raise CorrectTheInput.breach(f"{name}_invalid", f"{name!r} is 'true' or 'false'")
        return default if text is None else text == "true"

    def moment(self, name: str) -> datetime | None:
        """With the offset that was written."""
        text = self.query(name)
        if text is None:
            return None
        try:
            return parse_date_time(text)
        except ValueError:
            message = (
                f"{name!r} is an RFC 3339 date-time such as 2026-01-15T09:30:00Z; "
                "the '+' of an offset is written %2B here"
            )
            raise CorrectTheInput.breach(f"{name}_invalid", message) from None

    def choice(self, name: str, accepted: tuple[str, ...]) -> str | None:
        text = self.query(name)
        if text is not None and text not in accepted:
            raise CorrectTheInput.breach(f"{name}_invalid", f"{name!r} is one of: {', '.join(accepted)}")
        return text


def whole_number(name: str, text: str, *, at_least: int, at_most: int) -> int:
    """The value of a parameter of the path or the query. `at_most` has 15 digits at most. Raises
    CorrectTheInput `<name>_invalid`."""
    number = whole_number_in(text)
    if number is None or not at_least <= number <= at_most:
        raise CorrectTheInput.breach(
            f"{name}_invalid", f"{name!r} is a whole number from {at_least} to {at_most}"
        )
    return number


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`route` is a method and a path, as `GET /flows`. `reply` is the type of what is JSON among
    `media_types`; YAML is an object, all else text. `scopes`: any one of them is enough. `problems` are the
    statuses besides those every route has. `hot`: conversations live by it, so it is found before the router
    is asked (`api.app`). Query parameters other than `parameters` are refused, unless that is None.
    """

    route: str
    handler: Callable[[Call], Awaitable[Response]]
    summary: str
    reply: Any
    audience: str
    scopes: tuple[Scope, ...]
    status: int = 200
    body: TypeAdapter[Any] | None = None
    parameters: tuple[Parameter, ...] | None = ()
    problems: tuple[int, ...] = ()
    keyed: bool = False
    body_example: object = None
    media_types: tuple[str, ...] = (JSON,)
    hot: bool = False

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]


class Room(Protocol):
    """Endpoints that belong together, with what they need."""

    def endpoints(self) -> Sequence[Endpoint]: ...


for_agents = partial(Endpoint, audience="agents", scopes=("agent",))
for_designers = partial(Endpoint, audience="designers", scopes=("designer",))
for_watchers = partial(Endpoint, audience="watchers", scopes=("operator",))


class Reply(Response):
    """A response whose bytes are ready; without `media_type` it has no content, as a 304. What Starlette
    works out for each of its own costs more than most replies."""

    def __init__(
        self,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = JSON,
    ) -> None:
        self.body = body
        self.status_code = status
        self.background = None
        self.raw_headers: list[tuple[bytes, bytes]] = []
        if headers:
            for name, value in headers.items():
                self.raw_headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
        if media_type is not None:
            length = b"%d" % len(body)
            self.raw_headers += ((b"content-length", length), (b"content-type", media_type.encode("latin-1")))

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(head)
        await send({"type": "http.response.body", "body": self.body})


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Reply(orjson.dumps(content), status, headers)


def answer_response(answer: FinalReply) -> Response:
    return Reply(answer.body, answer.status, {"Idempotency-Replayed": "true"} if answer.replayed else None)

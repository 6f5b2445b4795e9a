"""The HTTP application: calls offered by Twilio and OpenAI, and what operators look at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast
from urllib.parse import parse_qsl

import orjson
import structlog
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from channels.voice.carriers.sip.calls import SipCalls
from channels.voice.carriers.sip.webhook import WebhookVerifier
from channels.voice.carriers.sip.webhook_handler import SipWebhookHandler
from channels.voice.carriers.twilio import twiml
from channels.voice.carriers.twilio.signature import TwilioRequestValidator
from channels.voice.metrics import Counting
from channels.voice.server import line_sockets as upgrade
from channels.voice.server.admission import Admission
from channels.voice.server.call_server import CallServer
from channels.voice.server.line_sockets import LineSockets
from channels.voice.server.problems import error_response, problem_response
from channels.voice.server.public_address import (
    PublicAddress,
    RequestInfo,
    is_forwarded,
    is_local,
    parse_proxies,
)
from channels.voice.server.settings import VoiceSettings
from flow_engine.errors import CorrectTheInput, FlowEngineError

MAX_BODY_BYTES = 64 * 1024
BODY_WITHIN_S = 10.0
MOST_FIELDS = 500

Handler = Callable[[Request], Awaitable[Response]]

log: Any = structlog.get_logger("flow_engine.voice")


@dataclass(frozen=True, slots=True)
class VoiceApp:
    """`asgi` and `sockets` belong together on one uvicorn server; `serving.serve_voice` runs them."""

    asgi: Starlette
    sockets: LineSockets
    admission: Admission
    sip: SipWebhookHandler | None


def voice_app(
    settings: VoiceSettings,
    call_server: CallServer,
    counting: Counting,
    sip_calls: SipCalls | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> VoiceApp:
    """SIP calls are taken with `sip_calls` and the secret of their webhook.

    Raises CorrectTheInput `trusted_proxies_invalid`, CallTheOperator `webhook_secret_invalid`.
    """
    address = PublicAddress(settings.public_url, parse_proxies(settings.trusted_proxies))
    token, secret = settings.twilio_auth_token, settings.openai_webhook_secret
    check = TwilioRequestValidator(None if token is None else token.get_secret_value(), address)
    admission = Admission(settings.voice_max_calls, clock)
    sip: SipWebhookHandler | None = None
    if secret is not None and sip_calls is not None:
        verifier = WebhookVerifier(secret.get_secret_value(), now)
        sip = SipWebhookHandler(verifier, sip_calls, admission, counting, call_server)
    routes = _Routes(check, address, admission, counting, sip)
    sockets = LineSockets(check, admission, counting, call_server)
    return VoiceApp(routes.application(), sockets, admission, sip)


class _Routes:
    def __init__(
        self,
        check: TwilioRequestValidator,
        address: PublicAddress,
        admission: Admission,
        counting: Counting,
        sip: SipWebhookHandler | None,
    ) -> None:
        self._check = check
        self._address = address
        self._admission = admission
        self._counting = counting
        self._sip = sip

    def application(self) -> Starlette:
        table: tuple[tuple[str, list[str], Handler], ...] = (
            ("/incoming-call", ["GET", "POST"], self.incoming_call),
            (upgrade.PATH, ["GET"], self.media_stream),
            ("/sip", ["POST"], self.sip_webhook),
            ("/healthz", ["GET"], self.health),
            ("/metrics", ["GET"], self.metrics),
            ("/drain", ["POST"], self.drain),
        )
        # Both spellings answer: a redirect would be signed for another URL.
        routes = [
            Route(spelled, _answered(handler), methods=methods)
            for path, methods, handler in table
            for spelled in (path, path + "/")
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _http_problem, Exception: _bug})
        app.router.redirect_slashes = False
        return app

    async def incoming_call(self, request: Request) -> Response:
        info = _request_info(request)
        body = await _body(request)
        form = _form(request.headers.get("content-type", ""), body)
        try:
            self._check.admit_request(info, form)
        except CorrectTheInput:
            self._counting.call_refused("not_allowed")
            raise
        fields = form or _fields(request.scope["query_string"])
        refusal = self._admission.promise()
        log.info("call_offered", call_sid=_field(fields, "CallSid")[:64], refused=refusal)
        if refusal is not None:
            self._counting.call_refused(refusal)
            return _twiml(twiml.busy())
        told = {
            "callerPhone": _field(fields, "From"),
            "calledPhone": _field(fields, "To"),
            "callSid": _field(fields, "CallSid"),
        }
        scheme, _, host = self._address.origin(info).partition("://")
        stream = f"{'wss' if scheme == 'https' else 'ws'}://{host}{upgrade.PATH}"
        return _twiml(twiml.connect(stream, {name: value for name, value in told.items() if value}))

    async def media_stream(self, request: Request) -> Response:
        return problem_response(
            "upgrade_needed", "a call's audio comes by WebSocket", {"Upgrade": "websocket"}
        )

    async def sip_webhook(self, request: Request) -> Response:
        if self._sip is None:
            raise CorrectTheInput(
                "sip_not_configured", "SIP calls need OPENAI_WEBHOOK_SECRET and OPENAI_API_KEY to be set"
            )
        outcome = self._sip.receive(request.headers, await _body(request))
        log.info("sip_webhook", outcome=outcome)
        return _json({"outcome": outcome})

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok", **self._state()})

    async def metrics(self, request: Request) -> Response:
        if is_forwarded(_request_info(request)):
            raise CorrectTheInput("not_local", "metrics are not shown through a proxy")
        return Response(generate_latest(self._counting.registry), media_type="text/plain; version=0.0.4")

    async def drain(self, request: Request) -> Response:
        if not is_local(_request_info(request)):
            raise CorrectTheInput("not_local", "only this machine may drain the agent")
        self._admission.drain()
        log.info("draining", live_calls=self._admission.live)
        return _json(self._state(), 202)

    def _state(self) -> Mapping[str, object]:
        return {"liveCalls": self._admission.under_way, "draining": self._admission.draining}


def _answered(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except FlowEngineError as error:
            log.warning("request_refused", route=request.scope["path"], code=error.code)
            return error_response(error)

    return answer


def _request_info(request: Request) -> RequestInfo:
    scope = request.scope
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    target = path + b"?" + query if query else path
    scheme = cast(Literal["http", "https"], scope["scheme"])
    peer = None if request.client is None else request.client.host
    return RequestInfo(scheme, peer, target.decode("latin-1"), request.headers)


async def _body(request: Request) -> bytes:
    """Raises CorrectTheInput `too_large` as soon as the body is, `too_slow`, `form_invalid`."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise CorrectTheInput("too_large", f"a body has at most {MAX_BODY_BYTES} bytes")
                parts.append(part)
    except TimeoutError:
        raise CorrectTheInput("too_slow", f"a body comes within {BODY_WITHIN_S:g} s") from None
    except ClientDisconnect:
        raise CorrectTheInput("form_invalid", "the body ended before it was whole") from None
    return b"".join(parts)


def _form(content_type: str, body: bytes) -> Mapping[str, list[str]]:
    kind = content_type.partition(";")[0].strip().lower()
    if body and kind != "application/x-www-form-urlencoded":
        raise CorrectTheInput(
            "media_type_unsupported", "a call is offered as application/x-www-form-urlencoded"
        )
    return _fields(body)


def _fields(text: bytes) -> Mapping[str, list[str]]:
    """Every field with all its values. Raises CorrectTheInput `form_invalid` for too many."""
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise CorrectTheInput("form_invalid", f"a form has at most {MOST_FIELDS} fields") from None
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def _field(fields: Mapping[str, list[str]], name: str) -> str:
    return fields.get(name, [""])[0]


def _twiml(document: str) -> Response:
    return Response(document, media_type=twiml.MEDIA_TYPE)


def _json(document: Mapping[str, object], status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    if not isinstance(error, HTTPException):
        raise error
    code = "path_unknown" if error.status_code == 404 else "method_not_allowed"
    return problem_response(code, str(error.detail), error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    log.error("bug", route=request.scope["path"], exc_info=error)
    return problem_response("internal_error", "the agent has an error, which is logged")

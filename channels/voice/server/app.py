"""The HTTP application: calls offered by a carrier and by OpenAI, and what operators look at."""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from channels.voice.carriers.carrier import (
    CALL_ID_PARAMETER,
    CallOffer,
    Carrier,
    ConnectStream,
    HangUp,
    Instruction,
    Reject,
)
from channels.voice.carriers.sip.calls import SipCalls
from channels.voice.carriers.sip.webhook import SipWebhookHandler, WebhookVerifier
from channels.voice.metrics import Counting
from channels.voice.server import http, line_sockets
from channels.voice.server.call_server import Admission, CallServer, ChangingServer
from channels.voice.server.line_sockets import LineSockets
from channels.voice.server.public_address import PublicAddress, RequestInfo, is_forwarded, is_local
from channels.voice.server.settings import VoiceSettings
from flow_engine.errors import CorrectTheInput, FlowEngineError

ENDED_PATH = "/stream-ended"

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
    carrier: Carrier,
    call_server: CallServer,
    counting: Counting,
    sip_calls: SipCalls | None,
    *,
    changing: ChangingServer | None = None,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> VoiceApp:
    """SIP calls are taken with `sip_calls` and the secret of their webhook. With `changing` the config can be
    reloaded. `clock` gives monotonic seconds, `now` the time in UTC.

    Raises CorrectTheInput `trusted_proxies_invalid`, CallTheOperator `webhook_secret_invalid`.
    """
    secret = settings.openai_webhook_secret
    admission = Admission(settings.voice_max_calls, clock)
    sip: SipWebhookHandler | None = None
    if secret is not None and sip_calls is not None:
        verifier = WebhookVerifier(secret.get_secret_value(), now)
        sip = SipWebhookHandler(verifier, sip_calls, admission, counting, call_server)
    routes = _Routes(
        carrier,
        settings.public_address(),
        admission,
        counting,
        call_server,
        sip,
        changing,
        has_key=settings.has_model_key,
    )
    sockets = LineSockets(carrier, admission, counting, call_server)
    return VoiceApp(routes.application(), sockets, admission, sip)


@dataclass(frozen=True, slots=True)
class _Routes:
    carrier: Carrier
    address: PublicAddress
    admission: Admission
    counting: Counting
    call_server: CallServer
    sip: SipWebhookHandler | None
    changing: ChangingServer | None
    has_key: bool

    def application(self) -> Starlette:
        table: tuple[tuple[str, list[str], Handler], ...] = (
            ("/incoming-call", ["GET", "POST"], self.incoming_call),
            (ENDED_PATH, ["POST"], self.stream_ended),
            (line_sockets.PATH, ["GET"], self.media_stream),
            ("/sip", ["POST"], self.sip_webhook),
            ("/healthz", ["GET"], self.health),
            ("/metrics", ["GET"], self.metrics),
            ("/calls", ["GET"], self.calls),
            ("/drain", ["POST"], self.drain),
            ("/reload", ["POST"], self.reload),
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
        info = http.request_info(request)
        offer = await self._admitted(request, info)
        refusal = self.admission.promise()
        call_id = uuid.uuid4().hex
        log.info("call_offered", call_id=call_id, call_sid=offer.call_id[:64], refused=refusal)
        if refusal is not None:
            self.counting.call_refused(refusal)
            return self._instructed(Reject("busy"))
        origin = self.address.origin(info)
        scheme, _, host = origin.partition("://")
        stream = f"{'wss' if scheme == 'https' else 'ws'}://{host}{line_sockets.PATH}"
        parameters = {**offer.parameters, CALL_ID_PARAMETER: call_id}
        return self._instructed(ConnectStream(stream, parameters, origin + ENDED_PATH))

    async def stream_ended(self, request: Request) -> Response:
        """What is to become of a call whose stream has ended: nobody is left in silence (V12)."""
        offer = await self._admitted(request, http.request_info(request))
        lost = self.call_server.lost(offer.call_id)
        log.info("stream_ended", call_sid=offer.call_id[:64], model_lost=lost is not None)
        return self._instructed(lost or HangUp())

    async def _admitted(self, request: Request, info: RequestInfo) -> CallOffer:
        try:
            return self.carrier.admit(info, await http.read_body(request))
        except CorrectTheInput as error:
            if http.STATUS_OF_CODE.get(error.code) == 403:
                self.counting.call_refused("not_allowed")
            raise

    async def media_stream(self, request: Request) -> Response:
        return http.problem_response(
            "upgrade_needed", "a call's audio comes by WebSocket", {"Upgrade": "websocket"}
        )

    async def sip_webhook(self, request: Request) -> Response:
        if self.sip is None:
            raise CorrectTheInput(
                "sip_not_configured", "SIP calls need OPENAI_WEBHOOK_SECRET and OPENAI_API_KEY to be set"
            )
        outcome = self.sip.receive(request.headers, await http.read_body(request))
        log.info("sip_webhook", outcome=outcome)
        return http.json_response({"outcome": outcome})

    async def health(self, request: Request) -> Response:
        """`status` is `ok`, `draining` with 503, or `key_missing`: the process is well, its calls are not."""
        up = "ok" if self.has_key else "key_missing"
        status = "draining" if self.admission.draining else up
        return http.json_response({"status": status, **self._state()}, 503 if status == "draining" else 200)

    async def metrics(self, request: Request) -> Response:
        if is_forwarded(http.request_info(request)):
            raise CorrectTheInput("not_local", "metrics are not shown through a proxy")
        return Response(generate_latest(self.counting.registry), media_type="text/plain; version=0.0.4")

    async def calls(self, request: Request) -> Response:
        """Figures of single calls, for the console of this machine."""
        if not is_local(http.request_info(request)):
            raise CorrectTheInput("not_local", "only this machine may look at single calls")
        return http.json_response({"calls": self.counting.calls()})

    async def drain(self, request: Request) -> Response:
        if not is_local(http.request_info(request)):
            raise CorrectTheInput("not_local", "only this machine may drain the agent")
        self.admission.drain()
        log.info("draining", live_calls=self.admission.live)
        return http.json_response(self._state(), 202)

    async def reload(self, request: Request) -> Response:
        """New calls have the config as its file is now; those that go on keep theirs."""
        if not is_local(http.request_info(request)):
            raise CorrectTheInput("not_local", "only this machine may have the config reloaded")
        if self.changing is None:
            raise CorrectTheInput("path_unknown", "this agent's config does not come from a file")
        await self.changing.reload()
        log.info("config_reloaded", live_calls=self.admission.live)
        return http.json_response(self._state())

    def _instructed(self, instruction: Instruction) -> Response:
        document = self.carrier.answer(instruction)
        return Response(document.text, media_type=document.media_type)

    def _state(self) -> Mapping[str, object]:
        state = {"liveCalls": self.admission.under_way, "draining": self.admission.draining}
        return state if self.changing is None else {**state, "config": self.changing.digest}


def _answered(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except FlowEngineError as error:
            log.warning("request_refused", route=request.scope["path"], code=error.code, reason=error.detail)
            findings = error.findings if isinstance(error, CorrectTheInput) else ()
            return http.problem_response(error.code, error.detail, findings=findings)

    return answer


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    if not isinstance(error, HTTPException):
        raise error
    code = "path_unknown" if error.status_code == 404 else "method_not_allowed"
    return http.problem_response(code, str(error.detail), error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    log.error("bug", route=request.scope["path"], exc_info=error)
    return http.problem_response("internal_error", "the agent has an error, which is logged")

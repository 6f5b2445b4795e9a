"""Calls by SIP from OpenAI's webhook to their end.

Webhooks are signed as Standard Webhooks are, and each is taken once.
"""

import asyncio
import base64
import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from channels.voice.carriers.call_control import LineControlFailed
from channels.voice.carriers.sip.calls import SipCall, SipCalls, sip_call
from channels.voice.metrics import Counting
from channels.voice.server.call_server import Admission, CallServer
from flow_engine.errors import CallTheOperator, CorrectTheInput

Outcome = Literal["taken", "refused", "seen", "ignored"]

CALL_INCOMING = "realtime.call.incoming"
TOLERANCE = timedelta(minutes=5)
MOST_REMEMBERED = 10_000
"""Ids of webhooks. Only what is signed is remembered, so nobody else can push an id out."""

log: Any = structlog.get_logger("flow_engine.voice")

_SECONDS = re.compile(r"[0-9]{1,11}")


class WebhookVerifier:
    """Checks signature, age (at most 5 minutes) and novelty of a webhook; what fails is refused."""

    def __init__(self, secret: str, now: Callable[[], datetime]) -> None:
        """Raises CallTheOperator `webhook_secret_invalid`."""
        self._key = _signing_key(secret)
        self._now = now
        self._seen: OrderedDict[str, None] = OrderedDict()

    @staticmethod
    def checked(secret: str) -> str:
        """The secret itself, `whsec_` and base64. Raises CallTheOperator `webhook_secret_invalid`."""
        _signing_key(secret)
        return secret

    def verify(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether this webhook is new; False for one that was received before. Raises CorrectTheInput
        `signature_missing`, `signature_old`, `signature_wrong`. The signature is over the bytes of the
        body."""
        values = [headers.get(f"webhook-{name}") for name in ("id", "timestamp", "signature")]
        webhook_id, timestamp, signatures = values
        if not webhook_id or not timestamp or not signatures:
            raise CorrectTheInput(
                "signature_missing",
                "the headers webhook-id, webhook-timestamp and webhook-signature are needed",
            )
        signed = b"%b.%b.%b" % (webhook_id.encode(), timestamp.encode(), body)
        expected = base64.b64encode(hmac.new(self._key, signed, hashlib.sha256).digest())
        versioned = [entry.partition(",") for entry in signatures.split()]
        matches = [
            hmac.compare_digest(value.encode(), expected)
            for version, _, value in versioned
            if version == "v1"
        ]
        if not any(matches):
            raise CorrectTheInput("signature_wrong", "no v1 signature is that of this webhook")
        sent_s = float(timestamp) if _SECONDS.fullmatch(timestamp) else 0.0
        if abs(self._now().timestamp() - sent_s) > TOLERANCE.total_seconds():
            raise CorrectTheInput(
                "signature_old", f"the webhook is from more than {TOLERANCE.seconds // 60} minutes away"
            )
        if webhook_id in self._seen:
            return False
        self._seen[webhook_id] = None
        if len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)
        return True


def _signing_key(secret: str) -> bytes:
    encoded = secret.removeprefix("whsec_")
    try:
        key = secret.encode() if encoded == secret else base64.b64decode(encoded, validate=True)
    except ValueError:  # no base64, or characters beyond ASCII
        key = b""
    if not key:  # what an empty key signs, anybody can sign
        raise CallTheOperator("webhook_secret_invalid", "OPENAI_WEBHOOK_SECRET is not whsec_ and base64")
    return key


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    value: str


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True)

    call_id: str = Field(min_length=1, max_length=256)
    sip_headers: tuple[_Header, ...] = Field(default=(), max_length=256)


class _Incoming(BaseModel):
    model_config = ConfigDict(frozen=True)

    data: _Data


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    type: str


def call_of(body: bytes) -> SipCall | None:
    """The call that an event, JSON, tells of; None for an event of another kind. Raises CorrectTheInput
    `event_invalid` without repeating the event."""
    try:
        if _Event.model_validate_json(body).type != CALL_INCOMING:
            return None
        data = _Incoming.model_validate_json(body).data
    except ValidationError as error:
        places = ", ".join(
            ".".join(map(str, e["loc"])) or "the body" for e in error.errors(include_input=False)
        )
        raise CorrectTheInput("event_invalid", f"not an event of OpenAI: {places}") from None
    return sip_call(data.call_id, [(header.name, header.value) for header in data.sip_headers])


class SipWebhookHandler:
    """Takes the webhooks, and runs each call as a task of its own: OpenAI wants an answer at once."""

    def __init__(
        self,
        verifier: WebhookVerifier,
        calls: SipCalls,
        admission: Admission,
        counting: Counting,
        call_server: CallServer,
    ) -> None:
        self._verifier = verifier
        self._calls = calls
        self._admission = admission
        self._counting = counting
        self._call_server = call_server
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def receive(self, headers: Mapping[str, str], body: bytes) -> Outcome:
        """The body is the bytes as they came. Raises CorrectTheInput for what is not OpenAI's, or no
        event."""
        if not self._verifier.verify(headers, body):
            return "seen"
        call = call_of(body)
        if call is None:
            return "ignored"
        if call.call_id in self._tasks:
            return "seen"
        refusal = self._admission.take()
        if refusal is not None:
            self._counting.call_refused(refusal)
            self._run(call, self._reject(call))
            return "refused"
        self._run(call, self._answer(call))
        return "taken"

    async def close(self) -> None:
        """Stop what is still running."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, call: SipCall, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[call.call_id] = task
        task.add_done_callback(lambda done: self._done(call.call_id, done))

    async def _answer(self, call: SipCall) -> None:
        try:
            await self._call_server.answer_sip(call)
        finally:
            self._admission.release()

    async def _reject(self, call: SipCall) -> None:
        try:
            await self._calls.reject(call.call_id)
        except LineControlFailed as failed:
            log.warning("sip_reject_failed", reason=str(failed))

    def _done(self, call_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(call_id, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("sip_call_failed", exc_info=task.exception())

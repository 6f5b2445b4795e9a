"""Events to an operator's own address, one POST each, signed (F40, F45).

The signature is HMAC-SHA256 over `<t>.<body>`, `t` being the seconds since 1970 at which this very attempt
was made: whoever checks it can refuse what is old. docs/events.md shows how.
"""

import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import orjson
import structlog

from flow_engine.ports import delivery, dialogue, outbound
from flow_engine.ports.clock import Clock
from flow_engine.runtime.events import kind_of

ANSWER_WITHIN_S = 5.0
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
_LONGEST_REST = timedelta(seconds=LONGEST_REST_S)
_MOST_HUNG_UP = 1_000

log: Any = structlog.get_logger("flow_engine.reporting")


class Webhook:
    """One per process. When nobody answers it rests, 1 to 60 s and ever longer, for all conversations: a dead
    address then costs one attempt now and then instead of one for every event. An answer of whatever status
    ends the rest, and is about its own event only; so is the next silence at an event, where others were
    answered since the last one."""

    def __init__(self, caller: outbound.OutboundSender, url: str, secret: str, clock: Clock) -> None:
        self._caller = caller
        self._url = url
        self._secret = secret.encode()
        self._clock = clock
        self._failures = 0
        self._rests_until: datetime | None = None
        self._answers = 0
        self._hung_up: dict[dialogue.ConversationRef, int] = {}  # at its event, after so many answers

    async def send(self, conversation: dialogue.ConversationRef, event: bytes) -> None:
        """Returns once the event, a JSON object, was taken: any 2xx that is whole within 5 seconds, whatever
        its body. Raises ReceiverAway with the moment (UTC) until which it rests, or ReceiverRefused for any
        other status, and for silence at this event alone."""
        now = self._clock.now()
        if (rest := self._rest_at(now)) is not None:
            raise delivery.ReceiverAway(rest)
        try:
            # Ids in headers are percent-encoded, as headers hold ASCII only.
            reply = await self._caller.request(
                "POST",
                self._url,
                timeout_s=ANSWER_WITHIN_S,
                headers={
                    "Content-Type": "application/json",
                    "X-Flow-Engine-Event-Id": orjson.loads(event)["eventId"],
                    "X-Flow-Engine-Kind": kind_of(event),
                    "X-Flow-Engine-Tenant": quote(conversation.tenant_id, safe=""),
                    "X-Flow-Engine-Signature": signature(self._secret, int(now.timestamp()), event),
                },
                content=event,
            )
            status = reply.status
        except outbound.OutboundRefused as refused:
            raise delivery.ReceiverRefused(f"the outbound policy forbids it: {refused}") from refused
        except outbound.UnusableAnswer as unusable:
            status = unusable.status
        except outbound.OutboundFailed as failed:
            raise self._unanswered(conversation, str(failed)) from failed
        self._failures, self._rests_until, self._answers = 0, None, self._answers + 1
        self._hung_up.pop(conversation, None)
        if not 200 <= status < 300:
            raise delivery.ReceiverRefused(f"the webhook answered with status {status}")

    def _rest_at(self, now: datetime) -> datetime | None:
        """Until when it rests. A clock that was put back ends a rest: it would last until that has caught
        up."""
        until = self._rests_until
        return until if until is not None and timedelta() < until - now <= _LONGEST_REST else None

    def _unanswered(
        self, conversation: dialogue.ConversationRef, reason: str
    ) -> delivery.ReceiverAway | delivery.ReceiverRefused:
        before = self._hung_up.get(conversation, self._answers)
        if len(self._hung_up) == _MOST_HUNG_UP:
            self._hung_up.clear()
        self._hung_up[conversation] = self._answers
        if self._answers > before:
            return delivery.ReceiverRefused(f"the webhook answers others, and not this event: {reason}")
        return self._away(reason)

    def _away(self, reason: str) -> delivery.ReceiverAway:
        now = self._clock.now()
        if (rest := self._rest_at(now)) is not None:  # several calls failed together
            return delivery.ReceiverAway(rest)
        rest_s = min(FIRST_REST_S * 2.0 ** min(self._failures, 30), LONGEST_REST_S)
        self._failures += 1
        self._rests_until = now + timedelta(seconds=rest_s)
        log.warning("webhook_away", reason=reason, rest_s=rest_s)
        return delivery.ReceiverAway(self._rests_until)


def signature(secret: bytes, timestamp: int, body: bytes) -> str:
    signed = hmac.new(secret, b"%d.%s" % (timestamp, body), hashlib.sha256)
    return f"t={timestamp},v1={signed.hexdigest()}"

"""Requests that may be sent again: their key, and the reply that all repetitions get (F15).

Agents' requests keep their replies beside the conversation, designers' in the record of their flow; the
words for both are these.
"""

from dataclasses import dataclass, field

from flow_engine.errors import CorrectTheInput


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """`key` as the caller sent it, or, where keys of several kinds of calls must not meet, made of the one
    that was `sent`; `fingerprint` is a digest of the request's method, path and body. What is sent has 1 to
    255 characters, the digest is SHA-256 in hexadecimal digits."""

    key: str
    fingerprint: str
    sent: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class FinalReply:
    """What is sent: the HTTP status and the exact body. `replayed`: an earlier request got these bytes."""

    status: int
    body: bytes
    replayed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class KeptReply:
    """The reply that the first request under a key got, with the fingerprint of that request. Kept for 24
    hours; `body` are the bytes that were sent."""

    fingerprint: str
    status: int
    body: bytes

    def replay(self, request: IdempotencyKey) -> FinalReply:
        """Raises CorrectTheInput `idempotency_key_reused` when another request came under the key. The same
        bytes otherwise."""
        if self.fingerprint != request.fingerprint:
            key = request.sent or request.key
            raise CorrectTheInput(
                "idempotency_key_reused",
                f"key {key!r} was sent with another request less than 24 hours ago: "
                "use a new key for a new request",
            )
        return FinalReply(self.status, self.body, replayed=True)

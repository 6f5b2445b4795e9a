"""Requests that have to arrive: sent again until the business has answered them (V5).

1. A request goes out under one `Idempotency-Key`, the first try and every other one.
2. Answered is what got a status below 500, but 408 and 429: a refusal is an answer. Everything else is sent
   again, after 1, 2, 4 … seconds, at most 5 minutes, for a day.
3. With a directory, a request is written there before its first try and removed when it is answered, so that
   it outlives the process. The files hold transcripts: nobody else may read them, and one that cannot be
   sent, as it is unfinished or unreadable, is removed once it is a day old.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from channels.http_tools.http_calls import masked_url
from channels.retries import GIVEN_UP_AFTER_S, MOST_WAITING, Retries
from channels.voice.manager.directory import write_private
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply, OutboundSender

log: Any = structlog.get_logger("flow_engine.voice")

KEY_HEADER: Final = "Idempotency-Key"

_AGAIN: Final = frozenset({408, 429})


class Delivery(BaseModel):
    """One request, as it is kept in a file. `since` is in seconds of the Unix clock, `timeout_s` is that of a
    try; `log_fields` stand on every line of the log about it."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    key: str
    since: float
    method: str
    url: str
    headers: dict[str, str]
    content: bytes
    timeout_s: float
    log_fields: dict[str, str] = {}


class Deliveries:
    """One agent's. Without a directory, what is under way ends with the process. `now` gives seconds of the
    Unix clock."""

    def __init__(
        self,
        outbound: OutboundSender,
        directory: Path | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._outbound = outbound
        self._directory = directory
        self.now = now
        self._retries = Retries(self._try, self._given_up, clock=now)

    @property
    def waiting(self) -> int:
        """How many requests have not been answered yet."""
        return self._retries.waiting

    def sender(self, outbound: OutboundSender, log_fields: Mapping[str, str]) -> OutboundSender:
        """A way out whose requests arrive: `outbound` makes the first try of each. One that fails is tried
        again in seconds, then minutes."""
        return _Delivered(self, outbound, log_fields)

    def resume(self) -> int:
        """Go on with the JSON files that an earlier process has left. Returns how many requests that are; one
        that cannot be read is logged and left out."""
        if self._directory is None:
            return 0
        useless = [*self._directory.glob("*.part")]
        for file in sorted(self._directory.glob("*.json")):
            try:
                self.send_again(Delivery.model_validate_json(file.read_bytes()))
            except (OSError, ValidationError) as error:
                log.error("delivery_unreadable", file=file.name, reason=type(error).__name__)
                useless.append(file)
        for file in useless:
            with suppress(OSError):
                if self.now() - file.stat().st_mtime > GIVEN_UP_AFTER_S:
                    file.unlink()
        return self.waiting

    def keep(self, delivery: Delivery) -> None:
        """Write it down as JSON, where there is a directory. A file that cannot be written is logged: the
        failure ends nothing."""
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._directory / f"{delivery.key}.json", delivery.model_dump_json().encode())
        except OSError as error:
            log.error("delivery_not_kept", reason=error.strerror, **delivery.log_fields)

    def done(self, delivery: Delivery) -> None:
        """Nothing is left of it. A file that cannot be removed is logged: it is sent again one day."""
        if self._directory is None:
            return
        try:
            (self._directory / f"{delivery.key}.json").unlink(missing_ok=True)
        except OSError as error:
            log.error("delivery_not_removed", reason=error.strerror, **delivery.log_fields)

    def send_again(self, delivery: Delivery) -> None:
        """From now on, until it is answered. Returns at once. Where too many wait already, it stays in the
        directory for the next process, or is lost, which is logged."""
        if self.waiting >= MOST_WAITING:
            event = "delivery_lost" if self._directory is None else "delivery_put_off"
            log.error(event, **delivery.log_fields)
        else:
            self._retries.begin(delivery, delivery.since)

    async def settled(self) -> None:
        """Returns when everything that waits has been answered or given up, which is within a day."""
        await self._retries.settled()

    async def aclose(self) -> None:
        """One last try of everything that waits. What is not answered then stays in the directory, or is
        lost, which is logged."""
        for delivery in await self._retries.aclose():
            if self._directory is None:
                log.error("delivery_lost", **delivery.log_fields)

    def _given_up(self, delivery: Delivery) -> None:
        log.error("delivery_given_up", after_s=GIVEN_UP_AFTER_S, **delivery.log_fields)
        self.done(delivery)

    async def _try(self, delivery: Delivery) -> bool:
        """Whether it was answered, or the policy forbids it: then nothing is left of it."""
        began, status, reason, refused = time.perf_counter(), None, None, False
        try:
            reply = await self._outbound.request(
                delivery.method,
                delivery.url,
                timeout_s=delivery.timeout_s,
                headers=delivery.headers,
                content=delivery.content,
            )
            status = reply.status
        except OutboundRefused as error:
            reason, refused = str(error), True
        except OutboundFailed as error:
            reason = str(error)
        answered = status is not None and is_answer(status)
        (log.info if answered else log.warning)(
            "http_call",
            method=delivery.method,
            # Which parts of a path a call has put there is known at the first try only.
            url="/".join(masked_url(delivery.url).split("/")[:3]),
            status=status,
            reason=reason,
            again=True,
            duration_ms=round((time.perf_counter() - began) * 1000),
            **delivery.log_fields,
        )
        if answered or refused:
            self.done(delivery)
        return answered or refused


def is_answer(status: int) -> bool:
    """Whether a reply with this HTTP status ends a delivery: False for 408, 429 and from 500 on: those
    failures are tried again."""
    return status < 500 and status not in _AGAIN


class _Delivered:
    """Implements OutboundSender."""

    def __init__(
        self, deliveries: Deliveries, outbound: OutboundSender, log_fields: Mapping[str, str]
    ) -> None:
        self._deliveries = deliveries
        self._outbound = outbound
        self._log_fields = log_fields

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        key = uuid.uuid4().hex
        delivery = Delivery(
            key=key,
            since=self._deliveries.now(),
            method=method,
            url=url,
            headers={**(headers or {}), KEY_HEADER: key},
            content=content,
            timeout_s=timeout_s,
            log_fields=dict(self._log_fields),
        )
        answered = False
        try:
            # In a thread: a disk that is slow to write would make every call of the process stutter.
            await asyncio.to_thread(self._deliveries.keep, delivery)
            reply = await self._outbound.request(
                method, url, timeout_s=timeout_s, headers=delivery.headers, content=content
            )
            answered = is_answer(reply.status)
            return reply
        except OutboundRefused:
            answered = True  # the policy will not say anything else
            raise
        finally:
            # Whatever ends the first try, a caller that does not wait any longer included.
            if answered:
                self._deliveries.done(delivery)
            else:
                self._deliveries.send_again(delivery)

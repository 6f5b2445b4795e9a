"""What may still be sent and begun, counted over the last 24 hours for all processes together (M15).

A count is one document of the table `mail_state`: who counts writes it by compare-and-set, so that of many at
once none passes the bound. What is counted has a key, and the same key again counts once.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import Final, cast

from channels.mail.config import Limits
from flow_engine.errors import RetryLater
from flow_engine.ports.clock import Clock
from flow_engine.ports.records import Record, RecordStore
from flow_engine.values import JsonValue

WINDOW_S: Final = 24 * 60 * 60
ATTEMPTS: Final = 50


class StoredAllowance:
    """Implements `ports.Allowance` for one mailbox. Addresses and threads are stored as digests."""

    def __init__(
        self, state: RecordStore, clock: Clock, limits: Limits, *, tenant_id: str, mailbox: str
    ) -> None:
        self._state = state
        self._clock = clock
        self._limits = limits
        self._tenant_id = tenant_id
        self._mailbox = mailbox

    async def reply(self, message_id: str, thread: str, recipients: Collection[str]) -> str | None:
        limits = self._limits
        for address in sorted({address.lower() for address in recipients}):
            if not await self._counted("to", address, message_id, limits.replies_per_correspondent):
                return f"a recipient has had {limits.replies_per_correspondent} replies in 24 hours"
        if not await self._counted("thread", thread, message_id, limits.replies_per_thread):
            return f"the thread has had {limits.replies_per_thread} replies in 24 hours"
        return None

    async def run(self, run_id: str, sender: str) -> str | None:
        most = self._limits.runs_per_sender
        if not await self._counted("from", sender.lower(), run_id, most):
            return f"the sender has had {most} runs in 24 hours"
        return None

    async def _counted(self, kind: str, subject: str, key: str, most: int) -> bool:
        """False, and nothing is counted, where `most` others are counted already."""
        digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        name = f"count:{self._mailbox}:{kind}:{digest}"
        for _ in range(ATTEMPTS):
            now = self._clock.now().timestamp()
            record = await self._state.get(self._tenant_id, name)
            body: Mapping[str, object] = {} if record is None else record.body
            counted = cast("Mapping[str, float]", body.get("counted", {}))
            recent: dict[str, JsonValue] = {each: at for each, at in counted.items() if at > now - WINDOW_S}
            if key in recent:
                return True
            if len(recent) >= most:
                return False
            body = {"counted": {**recent, key: now}}
            new = Record(
                name, body, f"counts:{self._mailbox}", serial=1 if record is None else record.serial + 1
            )
            stored = (
                await self._state.insert(self._tenant_id, new)
                if record is None
                else await self._state.replace(self._tenant_id, new, record.serial)
            )
            if stored:
                return True
        raise RetryLater("mail_count_contended", "a count is being changed by many at once")

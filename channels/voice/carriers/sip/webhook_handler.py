"""Calls by SIP from the webhook to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Literal

import structlog

from channels.voice.carriers.rest import LineControlFailed
from channels.voice.carriers.sip.calls import SipCall, SipCalls
from channels.voice.carriers.sip.webhook import WebhookVerifier, call_of
from channels.voice.metrics import Counting
from channels.voice.server.admission import Admission
from channels.voice.server.call_server import CallServer

Outcome = Literal["taken", "refused", "seen", "ignored"]

log: Any = structlog.get_logger("flow_engine.voice")


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
        """Raises CorrectTheInput for what is not OpenAI's, or no event."""
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

"""The checks and the bookkeeping of a config whose calls a flow leads (V3, V5).

A blocked caller does not even start a conversation at the engine. Of the two ends of a call neither waits for
the other: what the business is told must not be lost with an engine that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

from channels.voice.call.ports import (
    CallControls,
    Caller,
    CallHandler,
    Ending,
    OpenCallHandler,
    Refused,
    SessionSettings,
    Turn,
)
from channels.voice.config.call_lifecycle import CallLifecycle
from channels.voice.config.models import Lifecycle, VoiceConfig
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

CHECKED_WITHIN_S: Final = 10.0
"""All checks together; the engine is asked after them, and a caller listens to silence meanwhile."""

HANDED_OVER: Final = "transferred"
"""The flag in ctx of a call that was given to a person, for outcome rules: a flow's tools set none."""


def with_lifecycle(
    opens: OpenCallHandler, config: VoiceConfig, outbound: OutboundSender, clock: Callable[[], datetime]
) -> OpenCallHandler:
    """The handlers of `opens`; as they are, where the config has neither checks nor a lifecycle."""
    if not config.pre_call_checks and config.lifecycle == Lifecycle():
        return opens

    def opened(caller: Caller, controls: CallControls) -> CallHandler:
        return FlowWithLifecycle(opens(caller, controls), CallLifecycle(config, outbound, clock, caller))

    return opened


class FlowWithLifecycle:
    """Implements `CallHandler` around another one."""

    def __init__(self, flow: CallHandler, books: CallLifecycle) -> None:
        self._flow = flow
        self._lifecycle = books
        self._is_flow_open = False

    async def open(self) -> SessionSettings | Refused:
        refusal = await self._refusal()
        if refusal is not None:
            return refusal
        self._is_flow_open = True
        return await self._flow.open()

    async def started(self) -> str | None:
        await self._lifecycle.began()
        return await self._flow.started()

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        return await self._flow.run_tool(name, arguments)

    async def said(self, turn: Turn) -> None:
        self._lifecycle.said(turn)
        await self._flow.said(turn)

    async def silent(self) -> None:
        await self._flow.silent()

    async def not_transferred(self, target: str) -> None:
        await self._flow.not_transferred(target)

    async def ended(self, ending: Ending) -> None:
        if not self._is_flow_open:
            return
        self._lifecycle.context.ctx[HANDED_OVER] = ending.reason == "transferred"
        ends = (self._flow.ended(ending), self._lifecycle.ended(ending))
        for failure in await asyncio.gather(*ends, return_exceptions=True):
            if failure is not None:
                raise failure

    async def _refusal(self) -> Refused | None:
        try:
            async with asyncio.timeout(CHECKED_WITHIN_S):
                return await self._lifecycle.refusal()
        except TimeoutError:
            self._lifecycle.log.warning("checks_not_done", within_s=CHECKED_WITHIN_S)
            return None

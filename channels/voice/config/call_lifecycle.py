"""What a config's business has to do with a call, whoever leads it: checks before it, bookkeeping around it,
and the context that their templates see (V3, V5, V11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import structlog

from channels.http_tools.http_calls import HttpCaller
from channels.http_tools.scope import Scope
from channels.http_tools.tools import CallContext
from channels.voice.call.ports import Caller, Ending, Refused, Turn
from channels.voice.config.checks import blocking
from channels.voice.config.lifecycle import outcome_of, send_lifecycle_call
from channels.voice.config.models import VoiceConfig
from channels.voice.config.transcripts import as_entry, summary, utc_milliseconds
from channels.voice.config.wording import wording
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

_log: Any = structlog.get_logger("flow_engine.voice")


class CallLifecycle:
    """One call's. `clock` gives aware moments."""

    def __init__(
        self, config: VoiceConfig, outbound: OutboundSender, clock: Callable[[], datetime], caller: Caller
    ) -> None:
        self._config = config
        self._clock = clock
        self._caller = caller
        self._turns: list[Turn] = []
        self._duration_s: float | None = None
        self.log: Any = _log.bind(agent_id=config.agent.id, call_id=caller.call_id)
        self.http = HttpCaller(outbound, {"agent_id": config.agent.id, "call_id": caller.call_id})
        self.context = CallContext(
            ctx=_first_context(config, caller),
            agent={**config.agent.model_dump()},
            root={"base_url": config.base_url},
            specials=self._specials,
        )

    def scope(self) -> Scope:
        return self.context.scope()

    async def refusal(self) -> Refused | None:
        """None where no check objects to the call."""
        check = await blocking(self._config.pre_call_checks, self.http, self.scope(), self.log)
        if check is None:
            return None
        text = check.message.render_text(self.scope()) if check.message else ""
        return Refused(text or None)

    async def began(self) -> None:
        on_start = self._config.lifecycle.on_start
        stored = await send_lifecycle_call("on_start", on_start, self.http, self.scope(), self.log)
        self.context.ctx.update(stored)

    def said(self, turn: Turn) -> None:
        self._remember([*self._turns, turn])

    async def ended(self, ending: Ending) -> None:
        """Not for a call that was never started: it is none of the business's."""
        if not ending.started:
            return
        self._remember(list(ending.transcript))
        self._duration_s = ending.duration_s
        lifecycle = self._config.lifecycle
        outcome = outcome_of(lifecycle.outcome_rules, self.context.ctx)
        self.log.info(
            "call_outcome", outcome=outcome, flags=self._flags(), duration_ms=round(ending.duration_s * 1000)
        )
        for event, call in (("on_no_action", lifecycle.on_no_action), ("on_end", lifecycle.on_end)):
            scope = self.context.scope(outcome=outcome)
            self.context.ctx.update(await send_lifecycle_call(event, call, self.http, scope, self.log))

    def _remember(self, turns: list[Turn]) -> None:
        self._turns = turns
        self.context.ctx["transcript"] = [as_entry(turn) for turn in turns]
        self.context.ctx["had_conversation"] = bool(turns)

    def _specials(self) -> Mapping[str, JsonValue]:
        now = self._clock()
        duration_s = self._duration_s
        if duration_s is None:
            duration_s = (now - self._caller.started_at).total_seconds()
        return {
            "now_iso": utc_milliseconds(now),
            "caller_phone": self._caller.phone,
            "call_duration_sec": round(duration_s),
            "transcript": [as_entry(turn) for turn in self._turns],
            "transcript_summary": summary(self._turns, wording(self._config.agent.language)),
        }

    def _flags(self) -> list[str]:
        """The flags of the config that are set, for the log: their names tell nothing of the caller."""
        named = {rule.flag for rule in self._config.lifecycle.outcome_rules if rule.flag is not None}
        named.update(flag for tool in self._config.tools.values() for flag in tool.on_success_flags)
        return sorted(flag for flag in named if self.context.ctx.get(flag))


def _first_context(config: VoiceConfig, caller: Caller) -> dict[str, JsonValue]:
    """What the engine itself keeps in `ctx` (V11). `call_id` and `customer_id` are the business's to fill."""
    return {
        "caller_phone": caller.phone,
        "agent_id": config.agent.id,
        "call_start": utc_milliseconds(caller.started_at),
        "call_id": None,
        "customer_id": None,
        "had_conversation": False,
        "transcript": [],
        "should_hangup": False,
    }

"""What a config's business has to do with a call, whoever answers it: checks before it, bookkeeping around
it, and the context that their templates see (V3, V5, V11).

`on_end` is delivered at least once: a business that does not answer, or answers with an error of its own, is
sent the same request again (`deliveries`). Everything else is tried once.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from channels.http_tools import documents, http_calls, tools
from channels.http_tools.scope import Scope, Values
from channels.voice.call.ports import Caller, Ending, Refused, Turn
from channels.voice.config.models import OutcomeRule, PreCallCheck, VoiceConfig
from channels.voice.config.vocabulary import Wording, wording
from channels.voice.deliveries import Deliveries
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

CHECKED_WITHIN_S: Final = 10.0
"""All checks together: a caller listens to silence meanwhile."""

WITHIN_S: Final = 14.0
"""One call of the bookkeeping. Two of them must fit into the half minute that a call has for its end."""

SUMMARY_LINES: Final = 6
TRANSFERRED: Final = "transferred"
"""The flag in ctx of a call that was given to a person, for outcome rules."""

_log: Any = structlog.get_logger("flow_engine.voice")


class ConfigLifecycle:
    """Implements `CallLifecycle` for one call. `clock` gives moments with their zone. Without `deliveries`,
    `on_end` that fails is tried once only."""

    def __init__(
        self,
        config: VoiceConfig,
        outbound: OutboundSender,
        clock: Callable[[], datetime],
        caller: Caller,
        deliveries: Deliveries | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._caller = caller
        self._turns: list[Turn] = []
        self._duration_s: float | None = None
        fields = {"agent_id": config.agent.id, "call_id": caller.call_id}
        self.log: Any = _log.bind(**fields)
        self.http = http_calls.HttpCaller(outbound, fields)
        delivered = outbound if deliveries is None else deliveries.sender(outbound, fields)
        self._delivered = http_calls.HttpCaller(delivered, fields, must_arrive=True)
        self.context = tools.CallContext(
            # What the engine itself keeps (V11). `call_id` and `customer_id` are the business's to fill;
            # `call_sid`, `called_phone` and `parameters` are the carrier's.
            ctx={
                "caller_phone": caller.phone,
                "called_phone": caller.called,
                "call_sid": caller.carrier_call_id,
                "parameters": dict(caller.parameters),
                "agent_id": config.agent.id,
                "call_start": utc_milliseconds(caller.started_at),
                "call_id": None,
                "customer_id": None,
                "had_conversation": False,
                "transcript": [],
                "should_hangup": False,
            },
            agent={**config.agent.model_dump()},
            root={"base_url": config.base_url},
            specials=self._specials,
        )

    async def refusal(self) -> Refused | None:
        """None where no check objects to the call, or none has answered within ten seconds."""
        try:
            async with asyncio.timeout(CHECKED_WITHIN_S):
                check = await self._blocking_check()
        except TimeoutError:
            self.log.warning("checks_not_done", within_s=CHECKED_WITHIN_S)
            return None
        if check is None:
            return None
        text = check.message.render_text(self.context.scope()) if check.message else ""
        self.log.debug("template_rendered", check=check.name, message=text)
        return Refused(text or None)

    async def began(self) -> None:
        on_start = self._config.lifecycle.on_start
        self.context.ctx.update(await self._send("on_start", on_start, self.http, self.context.scope()))

    async def turn(self, turn: Turn) -> None:
        self._remember([*self._turns, turn])

    async def ended(self, ending: Ending) -> None:
        """`on_no_action` and `on_end`, with the outcome of the call. Never raises for a business that
        fails."""
        self._remember(list(ending.transcript))
        self._duration_s = ending.duration_s
        ctx, lifecycle = self.context.ctx, self._config.lifecycle
        ctx[TRANSFERRED] = ending.reason == "transferred" or ctx.get(TRANSFERRED, False)
        outcome = outcome_of(lifecycle.outcome_rules, ctx)
        # The flags of the config that are set, for the log: their names tell nothing of the caller.
        named = {rule.flag for rule in self._config.lifecycle.outcome_rules if rule.flag is not None}
        named.update(flag for tool in self._config.tools.values() for flag in tool.on_success_flags)
        self.log.info(
            "call_outcome",
            outcome=outcome,
            flags=sorted(flag for flag in named if self.context.ctx.get(flag)),
            duration_ms=round(ending.duration_s * 1000),
        )
        no_action, on_end = lifecycle.on_no_action, lifecycle.on_end
        scope = self.context.scope(outcome=outcome)
        ctx.update(await self._send("on_no_action", no_action, self.http, scope))
        scope = self.context.scope(outcome=outcome)
        ctx.update(await self._send("on_end", on_end, self._delivered, scope))

    async def _blocking_check(self) -> PreCallCheck | None:
        """The first check that says no; the others are not asked then.

        A check that cannot be asked lets the call through: a business would rather take a call that it did
        not want than lose all of them together with one of its services.
        """
        for check in self._config.pre_call_checks:
            scope = self.context.scope()
            try:
                reply = await self.http.send(check, scope)
            except http_calls.CallFailed as failure:
                self.log.warning("check_failed", check=check.name, reason=failure.reason)
                continue
            if check.block_if.holds(scope, reply):
                self.log.info("call_blocked", check=check.name, on_block=check.on_block)
                return check
        return None

    async def _send(
        self, event: str, call: documents.LifecycleCall | None, http: http_calls.HttpCaller, scope: Scope
    ) -> dict[str, JsonValue]:
        """Send one call where its condition holds. Returns what it wants stored in ctx: nothing where it
        failed, which is logged and no reason to treat the caller differently."""
        if call is None or (call.condition is not None and not call.condition.holds(scope)):
            return {}
        try:
            async with asyncio.timeout(WITHIN_S):
                reply = await http.send(call, scope)
        except TimeoutError:
            self.log.warning("lifecycle_failed", lifecycle=event, reason=f"no reply within {WITHIN_S:g} s")
            return {}
        except http_calls.CallFailed as failure:
            self.log.warning("lifecycle_failed", lifecycle=event, reason=failure.reason)
            return {}
        return {name: path.first(reply, scope) for name, path in call.store_in_ctx.items()}

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


def outcome_of(rules: tuple[OutcomeRule, ...], ctx: Values) -> str | None:
    """What the first rule that applies says; with the same priority, the one that is written first. None
    without a rule that applies."""
    ordered = sorted(rules, key=lambda rule: rule.priority)
    return next((rule.outcome for rule in ordered if rule.flag is None or ctx.get(rule.flag)), None)


# The transcript, as a business's API gets it: `[{role, content, timestamp}]`, and its last lines as text.


def utc_milliseconds(moment: datetime) -> str:
    """`2026-01-15T19:30:00.000Z`, UTC in the form in which JavaScript writes an instant."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def as_entry(turn: Turn) -> JsonValue:
    return {"role": turn.role, "content": turn.text, "timestamp": utc_milliseconds(turn.at)}


def summary(turns: Sequence[Turn], wording: Wording) -> str:
    """The last six turns, as lines of text, with who spoke."""
    speakers = {"user": wording.caller, "assistant": wording.agent}
    return "\n".join(
        f"{speakers[turn.role]}: {' '.join(turn.text.split())}" for turn in turns[-SUMMARY_LINES:]
    )

"""The business's bookkeeping of a call: what is sent when, and what the call came to (V5)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from channels.http_tools.documents import LifecycleCall
from channels.http_tools.http_calls import CallFailed, HttpCaller
from channels.http_tools.scope import Scope, Values
from channels.voice.config.models import OutcomeRule
from flow_engine.values import JsonValue

WITHIN_S: Final = 14.0
"""One call of the bookkeeping. Two of them must fit into the half minute that a call has for its end."""


def outcome_of(rules: tuple[OutcomeRule, ...], ctx: Values) -> str | None:
    """What the first rule that applies says; with the same priority, the one that is written first."""
    ordered = sorted(rules, key=lambda rule: rule.priority)
    return next((rule.outcome for rule in ordered if rule.flag is None or ctx.get(rule.flag)), None)


async def send_lifecycle_call(
    event: str, call: LifecycleCall | None, http: HttpCaller, scope: Scope, log: Any
) -> dict[str, JsonValue]:
    """Send one call where its condition holds. Returns what it wants stored in ctx: nothing where it failed,
    which is logged and no reason to treat the caller differently."""
    if call is None or (call.condition is not None and not call.condition.holds(scope)):
        return {}
    try:
        async with asyncio.timeout(WITHIN_S):
            reply = await http.send(call, scope)
    except TimeoutError:
        log.warning("lifecycle_failed", lifecycle=event, reason=f"no reply within {WITHIN_S:g} s")
        return {}
    except CallFailed as failure:
        log.warning("lifecycle_failed", lifecycle=event, reason=failure.reason)
        return {}
    return {name: path.first(reply, scope) for name, path in call.store_in_ctx.items()}

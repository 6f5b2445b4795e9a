"""Whether a call is taken: the questions to the business before anything else happens (V3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from channels.http_tools.http_calls import CallFailed, HttpCaller
from channels.http_tools.scope import Scope
from channels.voice.config.models import PreCallCheck


async def blocking(
    checks: Iterable[PreCallCheck], http: HttpCaller, scope: Scope, log: Any
) -> PreCallCheck | None:
    """The first check that says no; the others are not asked then.

    A check that cannot be asked lets the call through: a business would rather take a call that it did not
    want than lose all of them together with one of its services.
    """
    for check in checks:
        try:
            reply = await http.send(check, scope)
        except CallFailed as failure:
            log.warning("check_failed", check=check.name, reason=failure.reason)
            continue
        if check.block_if.holds(scope, reply):
            log.info("call_blocked", check=check.name, on_block=check.on_block)
            return check
    return None

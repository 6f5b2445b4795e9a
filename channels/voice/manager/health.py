"""How a manager talks with its agents: their health, and the word to take no more calls."""

from __future__ import annotations

from typing import cast

import orjson

from channels.voice.manager.fleet import Answer, Health, NoAnswer
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundSender

TIMEOUT_S = 5.0


async def check_health(caller: OutboundSender, port: int) -> Health:
    """`GET /healthz` answers 200 and `{"liveCalls": 0, "draining": false}`, or the agent is not healthy."""
    try:
        reply = await caller.request("GET", f"http://127.0.0.1:{port}/healthz", timeout_s=TIMEOUT_S)
        told: object = orjson.loads(reply.body) if reply.status == 200 else None
    except (OutboundRefused, OutboundFailed, orjson.JSONDecodeError):
        return NoAnswer()
    if not isinstance(told, dict):
        return NoAnswer()
    fields = cast("dict[str, object]", told)
    live_calls, draining = fields.get("liveCalls"), fields.get("draining")
    if isinstance(live_calls, bool) or not isinstance(live_calls, int) or not isinstance(draining, bool):
        return NoAnswer()
    return Answer(live_calls, draining)


async def ask_to_drain(caller: OutboundSender, port: int) -> bool:
    """Whether the agent has agreed."""
    try:
        reply = await caller.request("POST", f"http://127.0.0.1:{port}/drain", timeout_s=TIMEOUT_S)
    except (OutboundRefused, OutboundFailed):
        return False
    return 200 <= reply.status < 300

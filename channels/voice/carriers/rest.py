"""How the carriers' REST interfaces are called: through the outbound guard, with one kind of failure."""

from __future__ import annotations

from collections.abc import Mapping

from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply, OutboundSender

ANSWER_WITHIN_S = 10.0


class LineControlFailed(Exception):
    """The call is as it was: its carrier was not reached, or does not do what was asked.

    The message names the step and the status, never a number, a key or an answer's body.
    """


async def post(
    sender: OutboundSender, step: str, url: str, headers: Mapping[str, str], content: bytes
) -> OutboundReply:
    """Any status is a reply. Raises LineControlFailed, which begins with `step`."""
    try:
        return await sender.request("POST", url, timeout_s=ANSWER_WITHIN_S, headers=headers, content=content)
    except (OutboundRefused, OutboundFailed) as error:
        raise LineControlFailed(f"{step}: {error}") from error


def check(step: str, reply: OutboundReply) -> None:
    if not 200 <= reply.status < 300:
        raise LineControlFailed(f"{step}: refused with status {reply.status}")

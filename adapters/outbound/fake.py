"""A caller that answers from a table, for tests of whatever sends outbound calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply

Answer = OutboundReply | OutboundRefused | OutboundFailed


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call as it was made. `content` is the body byte for byte."""

    method: str
    url: str
    timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes = b""

    def json(self) -> object:
        return orjson.loads(self.content)


class ScriptedOutbound:
    """Implements `OutboundSender` without a network.

    `answers` maps a URL, compared as text, to its answers in order; the last one repeats. An answer
    that is an error is raised. `calls` holds every call, oldest first. A URL that is not in the table
    raises LookupError, which no caller takes for an outage: a test that forgot it fails.

        outbound = ScriptedOutbound({"https://crm.example/close": [OutboundReply(200, b"true")]})
        reply = await post_json(outbound, "https://crm.example/close", {"contactId": "c1"}, timeout_s=5)
        assert outbound.calls[0].json() == {"contactId": "c1"}
    """

    def __init__(self, answers: Mapping[str, Sequence[Answer]]) -> None:
        unanswered = sorted(url for url, listed in answers.items() if not listed)
        if unanswered:
            raise ValueError(f"URLs without an answer: {unanswered!r}")
        self._answers = {url: tuple(listed) for url, listed in answers.items()}
        self.calls: list[RecordedCall] = []

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        listed = self._answers.get(url)
        if listed is None:
            raise LookupError(f"nothing is scripted for {url!r}; scripted are {sorted(self._answers)!r}")
        before = sum(call.url == url for call in self.calls)
        self.calls.append(RecordedCall(method, url, timeout_s, dict(headers or {}), content))
        answer = listed[min(before, len(listed) - 1)]
        if isinstance(answer, OutboundReply):
            return answer
        raise answer

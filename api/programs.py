"""Routes for operators on the programs beside the service: the voice manager with its agents, and the chat.

A voice agent tells what it counts on `/metrics`; the chat keeps its decisions in the database of the flows.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.responses import Response
from typing_extensions import TypedDict

from api.endpoints import Call, Endpoint, for_watchers, json_response
from api.operations import BEFORE, LIMIT, page_limit, quantile_ms
from flow_engine.use_cases.chat_watch import ChatDecisionsReply, ChatSessionReply, ChatWatch

_VOICE = "flow_engine_voice_"
_ANSWERS = f"{_VOICE}response_seconds"


class _Status(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)


class Refreshed(_Status):
    at: str | None
    error: str | None


class BridgeRow(TypedDict):
    state: str
    restarts: int
    crashLoop: bool


class Agent(_Status):
    """`port` is one of the manager's machine."""

    id: str
    name: str
    type: str
    port: int
    state: str
    restarts: int
    crash_loop: bool
    live_calls: int | None
    bridge: BridgeRow | None = None


class ProblemRow(TypedDict):
    pointer: str
    code: str
    message: str


class NotAcceptedRow(TypedDict):
    id: str | None
    problems: Sequence[ProblemRow]


class ManagerStatus(_Status):
    """`status.json` of a voice manager, as far as it is told here."""

    stopping: bool
    refreshed: Refreshed
    written_at: str
    agents: Sequence[Agent]
    not_accepted: Sequence[NotAcceptedRow]


class VoiceFigures(TypedDict):
    """Since the agent's process started. `callsEnded` and `callsRefused` are by reason. `turns` are answers,
    their times in milliseconds from the end of the caller's turn to the first audio, estimated within the
    buckets of a histogram; null without a turn. Turns and `bargeIns` are counted when their call ends."""

    callsActive: int
    callsEnded: Mapping[str, int]
    callsRefused: Mapping[str, int]
    bargeIns: int
    turns: int
    meanMs: float | None
    p50Ms: float | None
    p95Ms: float | None


class VoiceCallRow(TypedDict):
    """`seconds` and `reason` are null while the call goes on. `turnsMs`: of each turn of the caller, the last
    100, the milliseconds from its end to the first audio of the answer; `turns` counts all."""

    callId: str
    startedAt: str
    seconds: float | None
    reason: str | None
    bargeIns: int
    turns: int
    turnsMs: Sequence[int]


class _Calls(_Status):
    calls: Sequence[VoiceCallRow] = ()


class VoiceAgentRow(TypedDict):
    """`figures` is null for an agent that does not answer. `calls` are those that go on and the last 50 that
    have ended since its process started, the latest first."""

    id: str
    name: str
    type: str
    port: int
    state: str
    restarts: int
    crashLoop: bool
    liveCalls: int | None
    bridge: BridgeRow | None
    figures: VoiceFigures | None
    calls: Sequence[VoiceCallRow]


class ManagerRow(TypedDict):
    """`refreshedAt` is when the list of agents was read last, `refreshError` why it could not be since.
    Times are in UTC."""

    writtenAt: str
    stopping: bool
    refreshedAt: str | None
    refreshError: str | None


class VoiceReply(TypedDict):
    """`missing` says why there is no manager, null where one runs."""

    missing: str | None
    manager: ManagerRow | None
    agents: Sequence[VoiceAgentRow]
    notAccepted: Sequence[NotAcceptedRow]


@dataclass(frozen=True, slots=True)
class Scraped:
    """What an agent tells: its metrics in Prometheus's text format, and JSON of its calls, empty without."""

    metrics: str
    calls: bytes


@dataclass(frozen=True, slots=True)
class VoiceSource:
    """Where a manager of this machine is looked for. `status` gives its status, or why there is none;
    `scrape` what the agents on these ports tell, None for one that does not answer. Neither raises."""

    status: Callable[[], Awaitable[ManagerStatus | str]]
    scrape: Callable[[Sequence[int]], Awaitable[Sequence[Scraped | None]]]


class ProgramRoutes:
    def __init__(self, voice: VoiceSource, chat: ChatWatch) -> None:
        self._voice = voice
        self._chat = chat

    async def voice(self, call: Call) -> Response:
        """200 also where no manager runs."""
        status = await self._voice.status()
        if isinstance(status, str):
            return json_response(VoiceReply(missing=status, manager=None, agents=[], notAccepted=[]))
        scraped = await self._voice.scrape([agent.port for agent in status.agents])
        reply = VoiceReply(
            missing=None,
            manager=ManagerRow(
                writtenAt=status.written_at,
                stopping=status.stopping,
                refreshedAt=status.refreshed.at,
                refreshError=status.refreshed.error,
            ),
            agents=[_agent(agent, told) for agent, told in zip(status.agents, scraped, strict=True)],
            notAccepted=status.not_accepted,
        )
        return json_response(reply)

    async def decisions(self, call: Call) -> Response:
        found = await self._chat.decisions(call.tenant_id, call.query("before"), limit=page_limit(call))
        return json_response(found)

    async def session(self, call: Call) -> Response:
        return json_response(await self._chat.session(call.tenant_id, call.path("session")))

    def endpoints(self) -> list[Endpoint]:
        return [
            for_watchers(
                "GET /operations/voice", self.voice, "The voice manager of this machine", VoiceReply
            ),
            for_watchers(
                "GET /operations/chat",
                self.decisions,
                "Decisions of the chat on which agent answers, the newest first",
                ChatDecisionsReply,
                parameters=(replace(BEFORE, look_up=self._chat.place), LIMIT),
            ),
            for_watchers(
                "GET /operations/chat/{session}",
                self.session,
                "A session of the chat: its decisions, and the runs of its agents",
                ChatSessionReply,
                problems=(404,),
            ),
        ]


def _agent(agent: Agent, scraped: Scraped | None) -> VoiceAgentRow:
    figures, calls = None, _Calls()
    if scraped is not None:
        with suppress(ValueError):  # what is no agent of this product
            figures = voice_figures(scraped.metrics)
            calls = _Calls.model_validate_json(scraped.calls)
    return VoiceAgentRow(**agent.model_dump(by_alias=True), figures=figures, calls=calls.calls)


def voice_figures(scraped: str) -> VoiceFigures:
    """What an agent counts, from its metrics in Prometheus's text format. Times in milliseconds. Raises
    ValueError for another text."""
    plain: dict[str, float] = {}
    by_reason: dict[str, dict[str, int]] = {}
    buckets: list[tuple[float, float]] = []
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            if sample.name == f"{_ANSWERS}_bucket":
                buckets.append((float(sample.labels["le"]), sample.value))
            elif "reason" in sample.labels and sample.name.endswith("_total"):
                by_reason.setdefault(family.name, {})[sample.labels["reason"]] = int(sample.value)
            elif not sample.labels:
                plain[sample.name] = sample.value
    buckets = sorted(buckets) or [(float("inf"), 0.0)]
    turns = buckets[-1][1]
    return VoiceFigures(
        callsActive=int(plain.get(f"{_VOICE}calls_active", 0)),
        callsEnded=by_reason.get(f"{_VOICE}calls", {}),
        callsRefused=by_reason.get(f"{_VOICE}calls_refused", {}),
        bargeIns=int(plain.get(f"{_VOICE}barge_ins_total", 0)),
        turns=int(turns),
        meanMs=round(plain.get(f"{_ANSWERS}_sum", 0.0) / turns * 1000, 2) if turns else None,
        p50Ms=quantile_ms(buckets, 0.5),
        p95Ms=quantile_ms(buckets, 0.95),
    )

"""Routes for the runs of mail agents: what they did, and what a person decides on calls that wait (M14)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal, NotRequired, cast
from urllib.parse import urlencode

from starlette.responses import Response
from typing_extensions import TypedDict

from api.endpoints import Call, Endpoint, Parameter, for_agents, json_response, one_of, whole
from flow_engine.use_cases.agent_runs import RUN_STATUSES, AgentRuns, Decision, RunStatus

LARGEST_PAGE: Final = 1_000
"""Runs in one reply."""


class ToolLine(TypedDict):
    """`iteration` is the turn of the model, from 1."""

    tool: str
    arguments: Mapping[str, object]
    result: object
    iteration: int


class RunReply(TypedDict):
    """One mail. `message_id` is the mail's, a digest of it where it has none; `profile` is null for the
    pipeline; times are UTC."""

    id: str
    mailbox: str
    message_id: str
    rule: str | None
    route: Literal["pipeline", "agent"]
    profile: str | None
    job: Literal["agent_process", "classify"]
    status: RunStatus
    final_message: str | None
    iterations: int
    tool_calls_log: Sequence[ToolLine]
    error: str | None
    conversation_id: str | None
    label: str | None
    automatic: str | None
    created_at: str
    ended_at: str | None


class ModelCall(TypedDict):
    """`call_type` is `agent`, `classify` or `draft`."""

    run_id: str
    call_type: str
    iteration: int
    model: str
    status: str
    reason: str | None
    input_tokens: int
    output_tokens: int
    duration_ms: int
    at: str


class WaitingCall(TypedDict):
    tool: str
    arguments: Mapping[str, object]


class RunDetails(RunReply):
    """`email_events` are lines of `event`, `at` and what belongs to the event; `waiting` is there while calls
    wait for a person."""

    llm_calls: Sequence[ModelCall]
    email_events: Sequence[Mapping[str, object]]
    waiting: NotRequired[Sequence[WaitingCall]]


_STATUS = Parameter("status", "only runs of this status", one_of(RUN_STATUSES))
_AFTER = Parameter("after", "The id of a run: only runs behind it")
_LIMIT = Parameter("limit", f"At most so many; 0 or left out: {LARGEST_PAGE}", whole(0, LARGEST_PAGE))


class AgentRunRoutes:
    def __init__(self, runs: AgentRuns) -> None:
        self._runs = runs

    async def every(self, call: Call) -> Response:
        status = cast("RunStatus | None", call.choice("status", RUN_STATUSES))
        limit = call.whole_number("limit", at_most=LARGEST_PAGE) or LARGEST_PAGE
        rows = await self._runs.rows(call.tenant_id, status, after=call.query("after"), limit=limit + 1)
        if len(rows) <= limit:
            return json_response(rows)
        following = {"after": str(rows[limit - 1]["id"]), "limit": limit} | (
            {"status": status} if status else {}
        )
        link = f'<?{urlencode(following)}>; rel="next"'  # from the address that was asked for
        return json_response(rows[:limit], headers={"Link": link})

    async def show(self, call: Call) -> Response:
        return json_response(await self._runs.row(call.tenant_id, call.path("run_id")))

    async def _decided(self, decision: Decision, call: Call) -> Response:
        return json_response(await self._runs.decide(call.tenant_id, call.path("run_id"), decision))

    def endpoints(self) -> list[Endpoint]:
        return [
            for_agents(
                "GET /agent-runs",
                self.every,
                "The runs of mail agents, oldest first; the header Link names the next page",
                Sequence[RunReply],
                parameters=(_STATUS, replace(_AFTER, look_up=self._runs.place), _LIMIT),
            ),
            for_agents(
                "GET /agent-runs/{run_id}",
                self.show,
                "One run with its model calls, its events, and the calls that wait",
                RunDetails,
                problems=(404,),
            ),
            for_agents(
                "POST /agent-runs/{run_id}/approve",
                partial(self._decided, "approved"),
                "Let all calls of the run that wait be made",
                RunReply,
                problems=(404, 409),
            ),
            for_agents(
                "POST /agent-runs/{run_id}/reject",
                partial(self._decided, "rejected"),
                "Refuse all calls of the run that wait; the run goes on without them",
                RunReply,
                problems=(404, 409),
            ),
        ]

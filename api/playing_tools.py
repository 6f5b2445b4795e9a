"""The tools with which coding agents play a version that is not published: talk to it, let personas talk to
it, replay conversations.

What the routes tell of a turn fills pages; here it is the part that decides what to do next, with pointers
into the document for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import orjson
from pydantic import Field, model_validator
from typing_extensions import TypedDict

from api.bodies import Facts, Id
from api.design_tools import FlowArguments, reading_tool, writing_tool
from api.mcp_tools import Keyed, Tool, ToolCall, ToolReply
from api.replays import LAST, ReplayBody
from api.simulations import SimulateBody
from api.tries import TURNS, TurnFields, asked_in, gone_on, version_faults, with_exact_values
from flow_engine.documents.findings import listed, reading_beside
from flow_engine.errors import pointer
from flow_engine.idempotency import FinalReply
from flow_engine.json_values import as_object
from flow_engine.testing import format
from flow_engine.testing.simulations import OpinionTold, RunTold, Simulations
from flow_engine.testing.tries import Tries, TryOrder
from flow_engine.testing.try_page import TryReply
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.replays import ReplayOrder, ReplayRow, Replays, ReplaySummary
from flow_engine.vocabulary import Channel, Phase

ROWS_SHOWN = 20
TURNS_SHOWN = 6
_BEGINNING = ("versionId", "document", "channel", "contact")


def _turn_faults(fields: Mapping[str, object]) -> Iterator[str]:
    goes_on, asked = fields.get("tryId") is not None, asked_in(fields)
    if goes_on and any(fields.get(name) is not None for name in _BEGINNING):
        yield f"{listed(_BEGINNING)} begin a try: leave 'tryId' out"
    yield from version_faults(fields)
    if len(asked) > 1 or (goes_on and not asked):
        yield f"give one of: {', '.join(TURNS)}; a try may begin without"


class TryTurnArguments(Keyed, TurnFields, FlowArguments):
    """All but the turn itself and `try_id` are of a try that begins."""

    try_id: Id | None = Field(
        default=None, description="The try to go on with, as the last turn gave it; without it one begins."
    )
    version_id: Id | None = Field(
        default=None, description="The version to try, a draft too, by id or tag; else the one saved last."
    )
    document: dict[str, object] | None = Field(
        default=None, description="In place of `versionId`: a document that is not saved."
    )
    channel: Channel | None = Field(default=None, description="The channel of a try that begins.")
    contact: Facts | None = Field(default=None, description="What is known of the caller of such a try.")

    _makes_sense = model_validator(mode="wrap")(reading_beside(_turn_faults))


class ReplayVersionArguments(ReplayBody, FlowArguments):
    version_id: Id = Field(description="The version to replay on, a draft too, by id or tag.")


class SimulateVersionArguments(SimulateBody, FlowArguments):
    record: bool = Field(
        default=False, description="Give the runs back as a recording, which plays them without a model."
    )


class TurnRefusal(TypedDict):
    """`missing` are names of variables, `condition` is the one that was not met."""

    code: str
    reason: str
    missing: Sequence[str]
    condition: str | None


class TurnTask(TypedDict):
    """A task with its JSON pointer into the document (RFC 6901). `open`: it can be entered now."""

    name: str
    pointer: str
    open: bool


class TriedTurn(TypedDict):
    """What a turn came to. `values` are those that are known, by the names of variables; `events` the
    subtypes of what was reported in it."""

    tryId: str
    turn: int
    status: Phase
    task: str
    taskStatus: str | None
    pointer: str
    said: Sequence[str]
    refusals: Sequence[TurnRefusal]
    values: Mapping[str, object]
    reachableTasks: Sequence[TurnTask]
    suggestedTasks: Sequence[str]
    checkpoints: Sequence[str]
    events: Sequence[str]
    promptTokens: int
    modelFailed: str | None


class ReplayedVersion(TypedDict):
    """`conversations` are the first that came out otherwise, `more` counts those left out; `pointers` lead to
    the tasks that they were refused, by name."""

    summary: ReplaySummary
    conversations: Sequence[ReplayRow]
    more: int
    pointers: Mapping[str, str]


class SimulatedRun(TypedDict):
    """`task` is where it ended, by name, with its pointer (RFC 6901), both null where it did not begin.
    `conversation` are the last turns of a run that failed, in the form of a recording."""

    run: int
    passed: bool
    turns: int
    failures: Sequence[str]
    opinion: OpinionTold | None
    task: str | None
    pointer: str | None
    conversation: Sequence[Mapping[str, object]]


class SimulatedVersion(TypedDict):
    """As `SimulationReply` has it. `recordingYaml` is null unless it was asked for."""

    versionId: str
    byModel: bool
    modelFailed: str | None
    runs: int
    left: int
    passed: int
    failed: int
    passK: float
    results: Sequence[SimulatedRun]
    recordingYaml: str | None


class PlayingTools:
    def __init__(
        self, tries: Tries, simulations: Simulations, replays: Replays, designing: Designing
    ) -> None:
        self._tries = tries
        self._simulations = simulations
        self._replays = replays
        self._designing = designing

    def tools(self) -> tuple[Tool, ...]:
        return (
            writing_tool(
                "try_turn",
                "Talk to a version or a document in memory, one turn a call; nothing is published or stored "
                "among conversations. Without `tryId` a contact begins; then say something as the user "
                "(`text`), ask for a task as an agent (`changeTask`), write values as a tool (`memory`), "
                "`hangup`, come back (`newContact`), end a transfer (`humanTask`), or `wait`.",
                (TryTurnArguments, TriedTurn, self.try_turn),
            ),
            reading_tool(
                "simulate_version",
                "Let a persona (a goal, a mood, knowledge, what it `expect`s at the end) talk to a version "
                "or a document in memory, by the service's model or as `recordingYaml` has it. The chart "
                "decides whether a run passed; a failed one shows why, where it ended, and its last turns.",
                (SimulateVersionArguments, SimulatedVersion, self.simulate_version),
            ),
            reading_tool(
                "replay_version",
                "Say what a version, a draft too, would have made of recorded conversations: those with "
                "these ids, or the last ones that a tag (`from`) chose the version of.",
                (ReplayVersionArguments, ReplayedVersion, self.replay_version),
            ),
        )

    async def try_turn(self, call: ToolCall, arguments: TryTurnArguments) -> ToolReply:
        """Raises what `Tries` raises, with JSON pointers into the arguments or the document (RFC 6901)."""
        arguments, principal = with_exact_values(arguments, call.exact), call.principal
        try_id, reply = arguments.try_id, None
        if try_id is None:
            contact = format.NewContactBody(channel=arguments.channel, data=arguments.contact)
            order = TryOrder(arguments.document, arguments.version_id, contact)
            reply = _try_reply(
                await self._tries.start(
                    principal.tenant_id,
                    arguments.flow_id,
                    order,
                    author=principal.name,
                    idempotency=call.idempotency(arguments, "mcp begin"),
                )
            )
            try_id = reply["tryId"]
        if reply is None or arguments.asked:
            reply = _try_reply(
                await gone_on(
                    self._tries,
                    (principal.tenant_id, arguments.flow_id, try_id),
                    arguments,
                    call.idempotency(arguments),
                )
            )
        turn = _turn(reply)
        return ToolReply(turn, "\n".join(_lines(turn)))

    async def simulate_version(self, call: ToolCall, arguments: SimulateVersionArguments) -> ToolReply:
        """Raises what `Simulations.simulate` raises, with JSON pointers into the arguments."""
        principal = call.principal
        reply = await self._simulations.simulate(
            principal.tenant_id, arguments.flow_id, arguments.order(), author=principal.name
        )
        simulated = SimulatedVersion(
            versionId=reply["versionId"],
            byModel=reply["byModel"],
            modelFailed=reply["modelFailed"],
            runs=reply["runs"],
            left=reply["left"],
            passed=reply["passed"],
            failed=reply["failed"],
            passK=reply["passK"],
            results=[_run(each) for each in reply["results"]],
            recordingYaml=reply["recordingYaml"] if arguments.record else None,
        )
        counts = (
            f"{reply['passed']} passed, {reply['failed']} failed, pass^{reply['runs']} {reply['passK']:g}"
        )
        failures = [
            f"run {each['run']}: {failure}" for each in reply["results"] for failure in each["failures"]
        ]
        unplayed = [f"the model failed: {reply['modelFailed']}"] if reply["modelFailed"] else []
        return ToolReply(simulated, "\n".join((counts, *failures, *unplayed)))

    async def replay_version(self, call: ToolCall, arguments: ReplayVersionArguments) -> ToolReply:
        tenant_id = call.principal.tenant_id
        order = ReplayOrder(arguments.conversations or (), arguments.from_tag, arguments.last or LAST)
        flow, version_id = await self._designing.named(tenant_id, arguments.flow_id, arguments.version_id)
        report = await self._replays.replay(tenant_id, flow.flow_id, version_id, order)
        other = ("newRefusals", "variablesGone", "checkpointsLost")
        rows = [
            row for row in report["conversations"] if row["path"] == "other" or any(row[n] for n in other)
        ]
        shown, summary = rows[:ROWS_SHOWN], report["summary"]
        document = await self._designing.document(tenant_id, flow.flow_id, version_id)
        refused = {refusal["task"] for row in shown for refusal in row["newRefusals"]}
        tasks = document.get("tasks")
        found = map(as_object, cast("list[object]", tasks) if isinstance(tasks, list) else [])
        places = {str(task.get("name", task.get("_id"))): n for n, task in enumerate(found)}
        replayed = ReplayedVersion(
            summary=summary,
            conversations=shown,
            more=len(rows) - len(shown),
            pointers={name: pointer("tasks", n) for name, n in places.items() if name in refused},
        )
        counts = ", ".join(f"{name} {count}" for name, count in summary.items())
        lines = [f"{row['conversationId']}: {row['path']} path" for row in shown]
        return ToolReply(replayed, "\n".join((counts, *lines)))


def _try_reply(reply: FinalReply) -> TryReply:
    return orjson.loads(reply.body)


def _run(reply: RunTold) -> SimulatedRun:
    task = reply["task"]
    return SimulatedRun(
        run=reply["run"],
        passed=reply["passed"],
        turns=reply["turns"],
        failures=reply["failures"],
        opinion=reply["opinion"],
        task=None if task is None else task["name"],
        pointer=None if task is None else task["pointer"],
        conversation=[] if reply["passed"] else reply["conversation"][-TURNS_SHOWN:],
    )


def _turn(reply: TryReply) -> TriedTurn:
    tasks = reply["taskPointers"]
    return TriedTurn(
        tryId=reply["tryId"],
        turn=reply["turn"],
        status=reply["status"],
        task=reply["task"]["name"],
        taskStatus=reply["task"]["status"],
        pointer=reply["task"]["pointer"],
        said=reply["said"],
        refusals=[
            TurnRefusal(
                code=each["code"],
                reason=each["reason"],
                missing=[missing["name"] for missing in each["missing"]],
                condition=each["condition"]["when"] if "condition" in each else None,
            )
            for each in reply["refusals"]
        ],
        values={each["name"]: each["value"] for each in reply["memory"] if each["value"] is not None},
        reachableTasks=[
            TurnTask(
                name=each["name"],
                pointer=tasks[each["taskId"]],
                open=not each["missingVariables"] and (each["condition"] or {"met": True})["met"],
            )
            for each in reply["reachableTasks"]
        ],
        suggestedTasks=reply["suggestedTasks"],
        checkpoints=[each["name"] for each in reply["checkpoints"] if each["reached"]],
        events=[str(as_object(each["body"]).get("subtype", each["type"])) for each in reply["events"]],
        promptTokens=reply["prompt"]["tokens"],
        modelFailed=reply["modelFailed"],
    )


def _lines(turn: TriedTurn) -> list[str]:
    named = ", ".join(
        f"{each['name']}{'' if each['open'] else ' (closed)'}" for each in turn["reachableTasks"]
    )
    return [
        f"{turn['tryId']}, turn {turn['turn']}: {turn['status']} in {turn['task']!r} ({turn['pointer']})",
        *(f"refused: {each['code']}: {each['reason']}" for each in turn["refusals"]),
        *(f"the agent says: {words}" for words in turn["said"]),
        f"reachable: {named or 'nothing'}",
    ]

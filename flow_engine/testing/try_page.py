"""What is told of a try after a turn: what was done, and the conversation as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, cast

import orjson
from typing_extensions import TypedDict

from flow_engine.errors import pointer
from flow_engine.ports.tries import KeptTry
from flow_engine.runtime.agent_data import agent_data_of, compose_prompt, prompt_input
from flow_engine.runtime.memory_dump import known_variables
from flow_engine.runtime.privacy import masked_reply
from flow_engine.runtime.prompt import prompt_parts
from flow_engine.runtime.replies import (
    ApprovalReply,
    JsonObject,
    KnownVariable,
    McpToolsReply,
    ReachableTaskReply,
    TaskRefused,
)
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.testing import format
from flow_engine.testing.expectations import Outcome
from flow_engine.testing.trial import Trial
from flow_engine.use_cases.history import JournalRow
from flow_engine.values import utc_text
from flow_engine.vocabulary import Channel, Phase

CHARACTERS_A_TOKEN = 4
"""Tokens are an estimate: no model's own tokenizer is asked."""


class ProblemTold(TypedDict):
    code: str
    detail: str


class TriedAction(TypedDict):
    """`by` is `user`, `agent` or, of what becomes of a human task, `human`. `kind` is that of a flow test's
    step: `contact`, `utterance`, `change_task`, `memory`, `human_task`, `end_contact`, `wait`. `text` is what
    was said, or is to be, `task` the name that was asked for, `outcome` that of a human task, `variables` the
    names that were written. `refusal` and `problem` say why it was not done; `command` is for the model's
    history, `advanced` the task that the conversation went on to by itself."""

    by: str
    kind: str
    text: str | None
    task: str | None
    outcome: str | None
    variables: Sequence[str]
    refusal: TaskRefused | None
    problem: ProblemTold | None
    command: str | None
    advanced: str | None


class TriedTask(TypedDict):
    """`status` is the part of a HUM or AIS task that a person plays, null elsewhere. `pointer` is an RFC 6901
    pointer into the document."""

    taskId: str
    name: str
    type: str
    status: str | None
    pointer: str


class CheckpointTold(TypedDict):
    """`enabled`: the active task has it. `at` is in UTC, null where it was not reached."""

    id: str
    name: str
    enabled: bool
    reached: bool
    at: str | None
    reason: str | None


class PromptPartTold(TypedDict):
    """`tokens` are an estimate. `volatile`: it may be another with each prompt."""

    name: str
    volatile: bool
    tokens: int
    text: str


class PromptTold(TypedDict):
    """The parts joined by empty lines are the text. `prefixHash` is that of the parts that stay."""

    tokens: int
    prefixHash: str
    parts: Sequence[PromptPartTold]


class TryReply(TypedDict):
    """A try after a turn. `actions`, `said` (the agent's words), `refusals`, `events` and `journal` are of
    this turn, everything else is as it stands. `taskPointers` lead into the document, by task id.
    `hasModel`: a model plays the agent; `modelFailed` says why it did not this time. `approvalRequired`: what
    the agent says in the task waits for a person; `approval` is the last text of the contact that did. Times
    are in UTC, values of sensitive variables have masks."""

    tryId: str
    flowId: str
    versionId: str
    expiresAt: str
    turn: int
    turnsLeft: int
    hasModel: bool
    modelFailed: str | None
    status: Phase
    contactId: str
    channel: Channel
    language: str
    task: TriedTask
    approvalRequired: bool
    approval: ApprovalReply | None
    taskPointers: Mapping[str, str]
    actions: Sequence[TriedAction]
    said: Sequence[str]
    refusals: Sequence[TaskRefused]
    memory: Sequence[KnownVariable]
    checkpoints: Sequence[CheckpointTold]
    reachableTasks: Sequence[ReachableTaskReply]
    suggestedTasks: Sequence[str]
    mcpTools: Sequence[McpToolsReply]
    prompt: PromptTold
    events: Sequence[JsonObject]
    journal: Sequence[JournalRow]


def told_action(step: format.Action, outcome: Outcome) -> TriedAction:
    """JSON values, as they are told of one action."""
    problem = outcome.problem
    of_agent = isinstance(step, format.ChangeTask | format.Remember) or (
        isinstance(step, format.Say) and step.utterance.src == "bot"
    )
    told = TriedAction(
        by="agent" if of_agent else "user",
        kind=format.kind_of(step),
        text=None,
        task=None,
        outcome=None,
        variables=[],
        refusal=cast("TaskRefused | None", outcome.refusal),
        problem=None if problem is None else ProblemTold(code=problem.code, detail=problem.detail),
        command=outcome.command,
        advanced=None if outcome.advanced is None else outcome.advanced.name,
    )
    match step:
        case format.Say():
            told["text"] = step.utterance.body
        case format.ChangeTask():
            told["task"] = step.change_task
        case format.HumanTask(human_task=human):
            told["by"] = "agent" if human.outcome == "waiting" else "human"
            told["outcome"], told["text"] = human.outcome, human.text
        case format.Remember():
            told["variables"] = [entry.var_id for entry in step.memory]
        case _:
            pass
    return told


async def try_reply(
    trial: Trial, kept: KeptTry, actions: Sequence[TriedAction], *, turns_left: int, failed: str | None
) -> TryReply:
    """Some milliseconds of CPU. Raises LookElsewhere `conversation_unknown` before it has begun."""
    runner, contact = await trial.runner(), trial.contact_id
    session, task = runner.session, runner.task
    places = {each.id: pointer("tasks", n) for n, each in enumerate(runner.flow.document.tasks)}
    secrets = runner.secrets()
    reply = masked_reply(agent_data_of(runner, contact, None), runner.flow, secrets)
    data: Mapping[str, Any] = orjson.loads(reply)
    shown = [*actions] if secrets is None else cast("list[TriedAction]", secrets.json([*actions]))
    return TryReply(
        tryId=session.conversation_id,
        flowId=session.flow_id,
        versionId=session.version_id,
        expiresAt=utc_text(kept.expires_at),
        turn=kept.revision,
        turnsLeft=turns_left,
        hasModel=trial.has_model,
        modelFailed=failed,
        status=session.states.phase,
        contactId=contact,
        channel=session.latest_contact.channel,
        language=session.language,
        task=TriedTask(
            taskId=task.id,
            name=task.name,
            type=task.type,
            status=runner.status,
            pointer=places[task.id],
        ),
        approvalRequired=bool(task.kind.holds),
        approval=data.get("approval"),
        taskPointers=places,
        actions=shown,
        said=[each["text"] or "" for each in shown if each["by"] == "agent" and each["kind"] == "utterance"],
        refusals=[each["refusal"] for each in shown if each["refusal"] is not None],
        memory=known_variables(runner, reveal=False),
        checkpoints=_checkpoints(runner),
        reachableTasks=data["reachableTasks"],
        suggestedTasks=[each.id for each in runner.suggested],
        mcpTools=data["mcpTools"],
        prompt=_prompt(runner),
        events=[*map(orjson.loads, trial.memory.events)],
        journal=trial.journal_of_this_turn(),
    )


def _checkpoints(runner: ConversationalFlowRunner) -> Sequence[CheckpointTold]:
    enabled = {each.id for each in runner.task.document.enabled_checkpoints if runner.applies(each)}
    reached = runner.loaded.mining.checkpoints
    return [
        CheckpointTold(
            id=each.id,
            name=each.name,
            enabled=each.id in enabled,
            reached=each.id in reached,
            at=utc_text(reached[each.id].at) if each.id in reached else None,
            reason=reached[each.id].reason if each.id in reached else None,
        )
        for each in runner.flow.document.checkpoints
    ]


def _prompt(runner: ConversationalFlowRunner) -> PromptTold:
    parts = [
        PromptPartTold(
            name=part.name,
            volatile=part.volatile,
            tokens=ceil(len(part.text) / CHARACTERS_A_TOKEN),
            text=part.text,
        )
        for part in prompt_parts(prompt_input(runner))
    ]
    tokens = sum(part["tokens"] for part in parts)
    return PromptTold(tokens=tokens, prefixHash=compose_prompt(runner).prefix_hash, parts=parts)

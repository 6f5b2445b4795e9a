"""What an agent gets after a step: prompt, tools, media and where it may go next (F28, F29).

Most of such a reply follows from version, task, channel and language. That is JSON already, made once for
all conversations (`FixedParts`); a reply is put together from it and from what is the conversation's own.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import orjson

from flow_engine.masking import MASKS, Secrets
from flow_engine.runtime import commands, replies
from flow_engine.runtime.beginnings import Beginning
from flow_engine.runtime.conversation_state import ConversationState
from flow_engine.runtime.fixed_parts import fixed_parts, mcp_tools
from flow_engine.runtime.human_part import HumanPart
from flow_engine.runtime.privacy import masked_conflicts
from flow_engine.runtime.prompt import Prompt, PromptConditions, PromptInput, recall
from flow_engine.runtime.rendered import values_read
from flow_engine.runtime.rules import UnmetCondition, missing_variables, reachable_tasks, unset
from flow_engine.templates import Allowance
from flow_engine.values import utc_text
from flow_engine.vocabulary import MemoryFormat


def agent_data_of(
    runner: ConversationState, contact_id: str, command: str | None, *, result: Literal[True] | None = None
) -> bytes:
    """Everything an agent needs to go on, after whatever the runner has done: `AgentData` as JSON, and
    `TaskChanged` with a `result`."""
    session, inputs = runner.session, prompt_input(runner)
    alike = runner.begun_like
    shared = None if alike is None or alike[0] is not session else alike[1]
    if shared is not None:
        recall(inputs, shared.known_by, shared.table)
    prompt = runner.platform.composer.compose(inputs)
    own: dict[str, object] = {
        "conversationId": session.conversation_id,
        "contactId": contact_id,
        "tenantId": session.tenant_id,
        "campaignId": session.campaign_id,
        "revision": session.revision,
        "command": command,
        "taskStatus": runner.status,
    }
    if inputs.returns_to is not None:
        own["returnsTo"] = inputs.returns_to
    if runner.left_task is not None:
        own["leftTask"] = runner.left_task.name
    own |= told_of_advance(runner)
    own |= told_of_approval(runner)
    if result is not None:
        own["result"] = result
    own["prefixHash"] = prompt.stable.hash
    rest = _rest(runner) if shared is None else shared.rest
    if runner.begins is not None and runner.begins[0] is session:
        _keep_beginning(runner, runner.begins[1], rest)
    return b"".join(
        (
            orjson.dumps(own)[:-1],
            *(b',"prompt":"', prompt.stable.json, b"\\n\\n", orjson.dumps(prompt.volatile)[1:]),
            rest,
        )
    )


def _rest(runner: ConversationState) -> bytes:
    """The reply's members that follow the prompt, and its end."""
    fixed = fixed_parts(runner)
    return b"".join(
        (
            *(b",", fixed.task, b",", fixed.conversation, b","),
            _media(runner, fixed),
            *(b',"mcpTools":', *_tools(runner, fixed)),
            *(b',"reachableTasks":', _reachable(runner, fixed), b"}"),
        )
    )


def _keep_beginning(runner: ConversationState, key: Hashable, rest: bytes) -> None:
    """What this conversation began with, for others that begin alike; what was cut is not kept."""
    composed = runner.loaded.composed
    if runner.whole and composed.of_session is not None:
        table = None if composed.table is None else composed.table[1]
        beginning = Beginning.of(runner.session, composed.of_session[1], table, rest)
        runner.platform.beginnings.put(key, beginning)


def compose_prompt(runner: ConversationState) -> Prompt:
    """As the conversation is now, in the installation's memory format. Raises as `prompt_input`."""
    return runner.platform.composer.compose(prompt_input(runner))


def prompt_input(runner: ConversationState, memory_format: MemoryFormat | None = None) -> PromptInput:
    """What a prompt of the conversation is made from as it is now; in the installation's memory format,
    unless another is asked for (F21). Raises KeyError for a section that the platform's prompts lack."""
    session, loaded = runner.session, runner.loaded
    return PromptInput(
        flow=runner.flow,
        session=session,
        sections=runner.platform.prompt_sections(runner.flow, session.latest_contact.channel),
        memory=runner.shown_memory,
        memory_updated_at=None if runner.new_memory else loaded.memory_updated_at,
        previous_contacts=runner.previous_contacts,
        tenant=runner.tenant,
        now=runner.now,
        attempts={} if runner.new_memory else loaded.mining.attempts,
        memory_format=memory_format or runner.platform.memory_format,
        conditions=_conditions(runner) if runner.flow.conditions else None,
        returns_to=None if (back := runner.returns_to) is None else back.name,
        suggested=runner.suggested,
        secrets=runner.secrets(),
        composed=loaded.composed,
        conflicts=masked_conflicts(runner.flow, runner.conflicts) if runner.flow.contested else {},
    )


def _conditions(runner: ConversationState) -> PromptConditions:
    """What conditions change in the prompt, as they are now."""
    reachable = reachable_tasks(runner.flow, runner.task, runner.guard)
    return PromptConditions(
        unmet=tuple(
            (task.task.name, task.condition.reason)
            for task in reachable
            if task.condition is not None and not task.open
        ),
        checkpoints=tuple(c for c in runner.task.document.enabled_checkpoints if runner.applies(c)),
        by_the_clock=runner.flow.by_the_clock,
    )


def get_refusal(runner: ConversationState, command: str | None = None) -> bytes:
    """The refusal of a change of task, as data (F12): `TaskRefused` as JSON. A `command` takes the place of
    the one that tells the refusal. Raises LookupError when the last change was not refused."""
    refusal = runner.get_task_validation_error()
    told: dict[str, object] = {
        "result": False,
        "code": refusal.code,
        "reason": refusal.reason,
        "command": commands.error(refusal.reason) if command is None else command,
        "from": refusal.from_task.name,
        "missing": [
            {
                "varId": m.var_id,
                "name": m.name,
                "type": m.type,
                "fillableBy": m.fillable_by,
                "fillableIn": [
                    {"taskId": task.id, "task": task.name, "tools": tools} for task, tools in m.fillable_in
                ],
            }
            for m in refusal.missing
        ],
        "reachableTasks": orjson.Fragment(_reachable(runner, fixed_parts(runner))),
        "revision": runner.session.revision,
    }
    if refusal.condition is not None:
        told["condition"] = _condition_reply(refusal.condition, runner.secrets(shortest=1))
    told.update(told_of_advance(runner))
    return orjson.dumps(told)


def told_of_advance(runner: ConversationState) -> Mapping[str, object]:
    """The member `advanced` of a reply, by names of tasks; empty where the conversation did not move by
    itself."""
    if runner.advanced is None:
        return {}
    left, entered = runner.advanced
    return {"advanced": {"from": left, "to": entered}}


def told_of_approval(runner: ConversationState) -> Mapping[str, replies.ApprovalReply]:
    """The member `approval` of a reply; empty where no text of the contact was put before a person."""
    approval = runner.session.approval
    if approval is None:
        return {}
    return {
        "approval": replies.ApprovalReply(
            approvalId=approval.id,
            taskId=approval.task_id,
            status=approval.status,
            text=approval.text,
            draft=approval.draft,
            reason=approval.reason,
            askedAt=utc_text(approval.asked_at),
            until=utc_text(approval.until),
            decidedAt=None if approval.decided_at is None else utc_text(approval.decided_at),
        )
    }


def get_text_refusal(runner: HumanPart) -> bytes:
    """The refusal of a text or of a decision on one, as data: `HumanTaskRefused` as JSON. Raises LookupError
    when none was refused."""
    refusal = runner.text_refusal
    if refusal is None:
        raise LookupError("the last report about a text was taken")
    told: dict[str, object] = {
        "result": False,
        "code": refusal.code,
        "reason": refusal.reason,
        "command": commands.error(refusal.reason),
        "accepted": runner.flow.chart.accepted_outcomes(runner.session.states),
        "taskName": runner.task.name,
        "taskStatus": runner.status,
        **told_of_approval(runner),
        "revision": runner.session.revision,
    }
    return orjson.dumps(told)


def _condition_reply(unmet: UnmetCondition, secrets: Secrets | None) -> replies.ConditionReply:
    """A condition that compares a sensitive variable with the very value that it has does not tell so."""
    found = unmet.explanation
    reply: replies.ConditionReply = {
        "of": unmet.rule.of,
        "when": unmet.rule.condition.text,
        "truth": _TRUTHS[found.truth],
        "parts": [
            {"expression": part.expression, "truth": _TRUTHS[part.truth], "values": part.values}
            for part in found.parts
        ],
        "wouldHold": found.would_hold,
    }
    if secrets is None:
        return reply
    reply["when"] = secrets.text(reply["when"])
    reply["wouldHold"] = [secrets.text(way) for way in reply["wouldHold"]]
    reply["parts"] = [
        {
            "expression": secrets.text(part["expression"]),
            "truth": part["truth"],
            "values": {
                secrets.text(read): value if value in MASKS.values() else secrets.json(value)
                for read, value in part["values"].items()
            },
        }
        for part in reply["parts"]
    ]
    return reply


_TRUTHS: Mapping[bool | None, replies.TruthName] = {True: "true", False: "false", None: "unknown"}


def _media(runner: ConversationState, fixed: replies.FixedParts) -> bytes:
    """Members of the reply's object."""
    flow, platform, (session, memory, tenant) = runner.flow, runner.platform, runner.shown_to_templates()
    channel, data = session.latest_contact.channel, session.latest_contact.data
    seen = values_read(fixed.media_reads, flow, runner.task, session.campaign_id, data, memory, tenant)
    key = (flow.content_hash, channel, session.language, seen)
    text = platform.media_texts.get(key)
    if text is None:
        allowance = Allowance()
        courtesy = platform.prompt_sections(flow, channel)["courtesy_instructions"]
        settings = platform.media(flow).reply(channel, runner.template_scope(), courtesy, allowance)
        text = orjson.dumps(settings)[1:-1]
        if allowance.cut:
            runner.whole = False
        else:
            platform.media_texts.put(key, text)
    return text


def _tools(runner: ConversationState, fixed: replies.FixedParts) -> Sequence[bytes]:
    tools, tool_values = fixed.tools, fixed.tool_values
    if fixed.conditional_tools:
        tools, _, tool_values = mcp_tools(runner, runner.holds)
    if not tool_values:
        return tools
    entries = map(runner.memory.get, tool_values)
    values = [orjson.dumps(None if entry is None else entry.value) for entry in entries]
    return [part for pair in zip(tools, (*values, b""), strict=True) for part in pair]


def _reachable(runner: ConversationState, fixed: replies.FixedParts) -> bytes:
    if not fixed.targets:
        return b"[]"
    if runner.flow.conditions:
        return _targets_now(runner, fixed)
    session, kept = runner.session, runner.platform.reachable_texts
    unset_now, described = unset(fixed.required, runner.memory), (*session.task.descriptions.values(),)
    key = (runner.flow.content_hash, runner.task.id, session.latest_contact.channel, unset_now, described)
    text = kept.get(key)
    if text is None:
        text = _targets_now(runner, fixed)
        kept.put(key, text)
    return text


def _targets_now(runner: ConversationState, fixed: replies.FixedParts) -> bytes:
    flow, described, memory = runner.flow, runner.session.task.descriptions, runner.memory
    guard = runner.guard if flow.conditions else None
    parts: list[bytes] = []
    for target in fixed.targets:
        task = flow.tasks[target.task_id]
        missing = missing_variables(task, memory)
        names = orjson.dumps([*map(flow.variables.name_of, missing)])
        found = None if guard is None else guard.state_of(task)
        parts += (
            *(target.head, orjson.dumps(described[task.id]), target.rest, names),
            b',"condition":null}' if found is None else b',"condition":%b}' % orjson.dumps(found),
        )
    return b"".join((*parts, b"]"))

"""The memory as agents and tools read it, and where each value comes from (F18)."""

from typing import cast

from flow_engine.masking import shown
from flow_engine.runtime import replies
from flow_engine.runtime.conversation_state import ConversationState
from flow_engine.runtime.memory import MINER, Conflict, age_s, is_stale
from flow_engine.values import JsonValue, utc_text


def memory_variables(runner: ConversationState, *, reveal: bool) -> list[replies.MemoryVariable]:
    """The merged memory (F18) in the order of the version's variables; without `reveal` with masks. JSON
    values, times in UTC."""
    memory = runner.memory if reveal else runner.shown_memory
    found = [
        replies.MemoryVariable(
            varId=spec.id,
            name=spec.name,
            type=spec.type,
            value=entry.value,
            updatedBy=entry.updated_by,
            updatedAt=None if entry.updated_at is None else utc_text(entry.updated_at),
            contactId=entry.contact_id,
            descriptionForLLM=None
            if entry.description_for_llm is None
            else [{"name": d.name, "value": d.value} for d in entry.description_for_llm],
        )
        for spec in runner.flow.variables
        if (entry := memory.get(spec.id)) is not None
    ]
    ageing = runner.flow.ageing
    for variable in found if ageing else ():
        id = variable["varId"]
        if id in ageing and variable["value"] is not None:
            variable["stale"] = is_stale(ageing[id], memory[id], runner.now)
            variable["ageS"] = age_s(memory[id], runner.now)
    for variable in found if runner.flow.sensitive else ():
        if variable["varId"] in runner.flow.sensitive:
            variable["sensitive"] = runner.flow.sensitive[variable["varId"]].sensitive
    return found


def known_variables(runner: ConversationState, *, reveal: bool) -> list[replies.KnownVariable]:
    """`memory_variables`, each with where its value comes from."""
    conflicts = runner.conflicts
    return [
        replies.KnownVariable(
            **each, provenance=_provenance(runner, each, conflicts.get(each["varId"]), reveal=reveal)
        )
        for each in memory_variables(runner, reveal=reveal)
    ]


def _provenance(
    runner: ConversationState, variable: replies.MemoryVariable, conflict: Conflict | None, *, reveal: bool
) -> replies.ProvenanceReply | None:
    """What the miner noted of its value, else the tool that wrote it; None without a value."""
    if variable["value"] is None:
        return None
    hide = None if reveal else runner.flow.sensitive.get(variable["varId"])
    mined = runner.loaded.mining.provenance.get(variable["varId"])
    if variable["updatedBy"] != MINER or mined is None:
        reply = replies.ProvenanceReply(
            source="tool", messageId=None, at=variable["updatedAt"], superseded=None
        )
    else:
        reply = replies.ProvenanceReply(
            source=mined.source,
            messageId=mined.message_id,
            at=utc_text(mined.at),
            superseded=shown(hide, cast("JsonValue", mined.superseded)),
        )
        if mined.confidence is not None:
            reply["confidence"] = mined.confidence
    if conflict is not None:
        other, said = conflict.other, mined if conflict.by_tool else None
        reply["superseded"] = value = shown(hide, other.value)
        reply["conflict"] = replies.ConflictReply(
            value=value,
            source="tool" if said is None else said.source,
            updatedBy=other.updated_by,
            messageId=None if said is None else said.message_id,
            at=None if other.updated_at is None else utc_text(other.updated_at),
        )
    return reply

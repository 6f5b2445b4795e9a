"""The tools that agents and their models call: the task and the memory of one conversation (F35).

The rules are those of the HTTP routes, since both call the same use cases. A tool differs in its shape: an
agent injects who is talking (`tenantId`, `conversationId`, `contactId`) into every call, so that the model
chooses the rest, and a reply carries a text for the model beside the data for the agent. Nothing here
knows the protocol that brings the calls.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from api.auth import Principal, Scope
from api.batches import places_without, with_others
from api.bodies import Body, Id, parse_body
from api.endpoints import MAX_KEY_LENGTH
from flow_engine.errors import CorrectTheInput, Finding, pointer, unknown_conversation
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.json_values import as_object
from flow_engine.masking import MASKS
from flow_engine.ports.dialogue import ActedOn, ConversationRef
from flow_engine.ports.telemetry import IDS_LOGGED
from flow_engine.runtime.memory import MemoryWrite, ValueDescription
from flow_engine.runtime.replies import MemoryDump, MemoryWritten, TaskChanged, TaskRefused
from flow_engine.runtime.tables import Row, render_markdown, value_text
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.values import JsonValue
from flow_engine.vocabulary import VariableType

_Parsed = TypeVar("_Parsed")
_IdempotencyKey = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH)]
_INJECTED = "Injected by the agent that runs the tool; do not make one up."


class _InConversation(Body):
    conversation_id: Id = Field(description=f"The conversation. {_INJECTED}")
    contact_id: Id = Field(description=f"The contact that is talking, such as one phone call. {_INJECTED}")
    tenant_id: Id | None = Field(
        default=None, description=f"The tenant that the conversation belongs to. {_INJECTED}"
    )


class Keyed(Body):
    """Of a tool that changes something."""

    idempotency_key: _IdempotencyKey | None = Field(
        default=None,
        description="The same for each repetition of one call: it takes effect once, and every repetition "
        "gets the first reply. Kept for 24 hours.",
    )


class ChangeTaskArguments(Keyed, _InConversation):
    task: Annotated[str, Field(max_length=512)] = Field(
        description="Name or id of the task to move to: one of those that the current prompt lists as "
        "reachable."
    )
    reason: Annotated[str, Field(max_length=2_000)] | None = Field(
        default=None, description="Why the task is changed now, in a sentence. It is kept for reviewers."
    )


class GetMemoryArguments(_InConversation):
    pass


class DescriptionArgument(Body):
    name: str = Field(description="What the property is called, for instance 'Doctor'.")
    value: str = Field(description="The property's value in words, for instance 'Dr. Rossi'.")


class MemoryEntryArgument(Body):
    var_id: Id = Field(description="Id or name of one of the flow's variables.")
    value: object = Field(
        description="The value, in the variable's type: text, number, true or false, a member of an enum, an "
        "ISO 8601 date, a phone number such as '+39 06 1234567', an e-mail address, or any JSON for a custom "
        "variable. Null takes back what tools have written."
    )
    description_for_llm: Annotated[
        tuple[DescriptionArgument, ...] | None, Field(strict=False, alias="descriptionForLLM")
    ] = Field(
        default=None,
        description="How prompts show the value, property by property. Required for custom variables.",
    )


class SetMemoryArguments(Keyed, _InConversation):
    updated_by: Annotated[str, Field(max_length=256)] = Field(
        description="Name of the tool that found the values. 'convMiner' is taken."
    )
    entries: Annotated[tuple[MemoryEntryArgument, ...], Field(strict=False, max_length=1_000)] = Field(
        description="What to store, each variable at most once: the whole list is stored, or nothing of it."
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the JSON of the arguments. `exact` are they as `read_exactly` gives what was sent."""

    tool: str
    principal: Principal
    arguments: bytes
    exact: object | None = None

    def parse(self, shape: TypeAdapter[_Parsed]) -> _Parsed:
        """Raises CorrectTheInput `arguments_invalid` with every breach. The arguments are JSON in UTF-8."""
        try:
            return parse_body(self.arguments, shape)
        except CorrectTheInput as refused:
            raise CorrectTheInput(
                "arguments_invalid", "the tool cannot be called with these arguments", refused.findings
            ) from None

    def conversation(self, arguments: _InConversation) -> ConversationRef:
        """The conversation of the caller's tenant; another tenant's is as unknown as one that never was.
        Raises LookElsewhere `conversation_unknown`."""
        tenant_id = self.principal.tenant_id
        IDS_LOGGED.set({"conversation_id": arguments.conversation_id, "contact_id": arguments.contact_id})
        if arguments.tenant_id not in (None, tenant_id):
            raise unknown_conversation(arguments.conversation_id)
        return ActedOn(tenant_id, arguments.conversation_id, self.principal.name)

    def idempotency(self, arguments: Keyed, step: str = "mcp") -> IdempotencyKey | None:
        """The key that the call came with; `step` names the change, where the call makes several."""
        if arguments.idempotency_key is None:
            return None
        digest = hashlib.sha256(f"{self.tool}\n".encode())
        digest.update(self.arguments)
        sent = arguments.idempotency_key
        # A header's value cannot hold a line break, so no `Idempotency-Key` of an HTTP call is one of these.
        return IdempotencyKey(f"{step}\n{sent}", digest.hexdigest(), sent)


@dataclass(frozen=True, slots=True)
class ToolReply:
    """`data` is for the agent's program and fits the tool's reply shape; `text` is for its model. JSON
    values, and some lines."""

    data: Mapping[str, object]
    text: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as a row. `scopes`: any one of them is enough. `description` is written for a model, `reply` is
    the type of the reply."""

    name: str
    title: str
    description: str
    scopes: tuple[Scope, ...]
    arguments: TypeAdapter[Any]
    reply: Any
    handler: Callable[[ToolCall], Awaitable[ToolReply]]
    reads_only: bool = False
    replaces: bool = False
    repeatable: bool = False


_CHANGE_TASK = TypeAdapter(ChangeTaskArguments)
_GET_MEMORY = TypeAdapter(GetMemoryArguments)
_SET_MEMORY = TypeAdapter(SetMemoryArguments)


class ConversationTools:
    def __init__(self, conversations: Conversations, dialogue: DialogueService) -> None:
        self._conversations = conversations
        self._dialogue = dialogue

    def tools(self) -> tuple[Tool, ...]:
        return (
            Tool(
                name="change_task",
                title="Change task",
                description="Move the conversation to another task as soon as the dialogue calls for it. "
                "Only tasks that the prompt lists as reachable can be entered, and only when the variables "
                "that they require have a value. When 'result' is true, go on by the new prompt. When it is "
                "false the conversation stays where it is: 'reason' says why, 'missing' which variables to "
                "ask for, 'reachableTasks' where it can go.",
                scopes=("agent",),
                arguments=_CHANGE_TASK,
                reply=TaskChanged | TaskRefused,
                handler=self.change_task,
            ),
            Tool(
                name="get_memory",
                title="Read the memory",
                description="Read all that is known in the conversation: the tenant's data, and every "
                "variable of the flow with its value, who wrote it and when. A variable without a value "
                "has null.",
                scopes=("tools", "agent"),
                arguments=_GET_MEMORY,
                reply=MemoryDump,
                handler=self.get_memory,
                reads_only=True,
            ),
            Tool(
                name="set_memory",
                title="Write to the memory",
                description="Store values that were found or confirmed, so that prompts, tools and later "
                "tasks know them. They win over what was heard in the dialogue. If any entry is wrong "
                "nothing is stored, and the error lists everything that has to be corrected.",
                scopes=("tools", "agent"),
                arguments=_SET_MEMORY,
                reply=MemoryWritten,
                handler=self.set_memory,
                replaces=True,
                repeatable=True,
            ),
        )

    async def change_task(self, call: ToolCall) -> ToolReply:
        """A refusal is a reply as well (F12, F29)."""
        arguments = call.parse(_CHANGE_TASK)
        answer = await self._conversations.change_task(
            call.conversation(arguments),
            arguments.contact_id,
            arguments.task,
            call.idempotency(arguments),
            reason=arguments.reason,
        )
        reply = cast("TaskChanged | TaskRefused", orjson.loads(answer.body))
        if reply["result"] is True:
            head = f"{reply['command']}\nThe task is now {reply['taskName']!r}. Go on by this prompt:"
            return ToolReply(reply, f"{head}\n\n{reply['prompt']}")
        text = f"{reply['command']}\n{_standing(reply)}\nCan be entered now: {_enterable(reply)}"
        return ToolReply(reply, text)

    async def get_memory(self, call: ToolCall) -> ToolReply:
        dump = await self._dialogue.get_memory(call.conversation(call.parse(_GET_MEMORY)))
        return ToolReply(dump, _known(dump))

    async def set_memory(self, call: ToolCall) -> ToolReply:
        """The whole batch or nothing (F19). Values are JSON. Raises CorrectTheInput `memory_invalid` with
        pointers into the arguments."""
        try:
            arguments = call.parse(_SET_MEMORY)
        except CorrectTheInput as refused:
            raise await with_others(refused, self._judge(call, refused)) from None
        writes = _writes(arguments if call.exact is None else _SET_MEMORY.validate_python(call.exact))
        answer = await self._put(call.conversation(arguments), writes, call.idempotency(arguments))
        written = cast("MemoryWritten", orjson.loads(answer.body))
        count, revision = len(arguments.entries), written["memoryRevision"]
        text = f"Stored {count} value(s); the memory is at revision {revision}.{_went_on(written)}"
        return ToolReply(written, text)

    async def _put(
        self,
        conversation: ConversationRef,
        writes: Sequence[MemoryWrite | None],
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        try:
            return await self._dialogue.put_memory(conversation, writes, idempotency)
        except CorrectTheInput as refused:
            raise _pointing_into_arguments(refused) from None

    async def _judge(self, call: ToolCall, refused: CorrectTheInput) -> None:
        """The entries that `refused` finds nothing wrong with; none where the arguments beside them cannot be
        taken. Raises CorrectTheInput."""
        try:
            sent = as_object(orjson.loads(call.arguments) if call.exact is None else call.exact)
            given = sent.get("entries")
            entries = cast("list[object]", given) if isinstance(given, list) else []
            sound = sorted(places_without(refused.findings, "/entries", len(entries)))
            arguments = _SET_MEMORY.validate_python({**sent, "entries": [entries[at] for at in sound]})
        except (orjson.JSONDecodeError, ValidationError):
            return
        if sound:
            writes = dict(zip(sound, _writes(arguments), strict=True))
            await self._put(call.conversation(arguments), [writes.get(at) for at in range(len(entries))])


def _writes(arguments: SetMemoryArguments) -> list[MemoryWrite]:
    return [
        MemoryWrite(
            var=entry.var_id,
            value=cast("JsonValue", entry.value),
            contact_id=arguments.contact_id,
            updated_by=arguments.updated_by,
            description_for_llm=None
            if entry.description_for_llm is None
            else tuple(ValueDescription(part.name, part.value) for part in entry.description_for_llm),
        )
        for entry in arguments.entries
    ]


def _pointing_into_arguments(refused: CorrectTheInput) -> CorrectTheInput:
    """A refused batch whose pointers are those of the arguments.

    Contact and author stand once beside the list here, not in each entry: what is wrong with them is
    told once.
    """
    if refused.code != "memory_invalid":
        return refused
    findings: dict[Finding, None] = {}
    for found in refused.findings:
        field = found.pointer.partition("/")[2].partition("/")[2]
        own = field in ("contactId", "updatedBy")
        place = pointer(field) if own else pointer("entries") + found.pointer
        findings[Finding(place, found.code, found.message)] = None
    return CorrectTheInput(refused.code, refused.detail, findings)


# --- texts for the model ----------------------------------------------------------------------------


def _standing(refused: TaskRefused) -> str:
    if "advanced" in refused:
        return f"{refused['reason']}.{_went_on(refused)}"
    return f"The task is still {refused['from']!r}: {refused['reason']}."


def _went_on(reply: TaskRefused | MemoryWritten) -> str:
    """A sentence after another one, where the conversation advanced."""
    advanced = reply.get("advanced")
    if advanced is None:
        return ""
    return f" The conversation went on by itself: the task is now {advanced['to']!r}."


def _enterable(refused: TaskRefused) -> str:
    """Names of the tasks that neither a variable, a condition nor a text that waits keeps shut."""
    held = refused["code"] == "waiting_for_approval"
    names = [
        task["name"]
        for task in refused["reachableTasks"]
        if not (held or task["missingVariables"]) and (task["condition"] is None or task["condition"]["met"])
    ]
    return ", ".join(names) or "no task"


def _known(dump: MemoryDump) -> str:
    rows: list[Row] = []
    for variable in dump["vars"]:
        name, value, described = variable["name"], variable["value"], variable["descriptionForLLM"]
        if value is None:
            continue
        if "sensitive" in variable:  # the data are for tools, this text for a model
            rows.append((name, "", MASKS[variable["sensitive"]]))
        elif described:
            rows.extend((name, part["name"], part["value"]) for part in described)
        else:
            kind = cast("VariableType", variable["type"])
            rows.append((name, "", value_text(kind, cast("JsonValue", value))))
    unset = [
        f"{variable['name']} ({variable['type']})" for variable in dump["vars"] if variable["value"] is None
    ]
    return f"{render_markdown(rows)}\n\nWithout a value: {', '.join(unset) or 'none'}"

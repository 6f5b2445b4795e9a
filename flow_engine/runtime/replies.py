"""The replies of the agents' API, field by field as they are sent (F28–F34)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired

import msgspec
from typing_extensions import TypedDict

from flow_engine.runtime.rendered import Reads
from flow_engine.vocabulary import ApprovalStatus, HumanOutcome, Phase, SensitiveKind, TextRefusalCode

JsonObject = Mapping[str, object]


TruthName = Literal["true", "false", "unknown"]


class ConditionStateReply(TypedDict):
    """`reason` is the author's, of what is not met, else of what has to be."""

    met: bool
    reason: str


class ReachableTaskReply(TypedDict):
    """A task that can be asked for. It can be entered now when `missingVariables` is empty and `condition` is
    met; that is null where nothing has to hold."""

    taskId: str
    name: str
    type: str
    description: str
    requiredVariables: Sequence[str]
    missingVariables: Sequence[str]
    condition: ConditionStateReply | None


class ToolParameterReply(TypedDict):
    """`value` is there for `fixed` and `variable` (null while the variable has none)."""

    parameterName: str
    assignmentStrategy: str
    assignmentValue: str
    value: NotRequired[object]


class ToolReply(TypedDict):
    """`resultMapping`: a JSONPath into the tool's result by the id of the variable that it is written to."""

    toolName: str
    parameters: Sequence[ToolParameterReply]
    resultMapping: NotRequired[Mapping[str, str]]


class McpToolsReply(TypedDict):
    serverName: str
    url: str
    tools: Sequence[ToolReply]


# `from` is a keyword of Python, hence the functional form.
Advanced = TypedDict("Advanced", {"from": str, "to": str})
"""Names of the tasks between which the conversation went on by itself. An agent that gets this refreshes its
prompt and its tools."""


class MediaReply(TypedDict):
    """Audio settings on the phone; elsewhere the text settings, where `tts`, `stt` and `vad` are null.

    `tts` and `stt` carry the entry for the conversation's language under `active`.
    `userInteractionTimeout` is in seconds, null: never.
    """

    llm: JsonObject | None
    tts: JsonObject | None
    stt: JsonObject | None
    vad: JsonObject | None
    courtesyMessages: JsonObject | None
    allowInterruptionsOnStart: bool
    allowInterruptions: bool
    enableRecording: bool
    userInteractionTimeout: float | None
    preemptiveGeneration: bool


class ApprovalReply(TypedDict):
    """The text that was the last to wait for a person. `text` is what may be sent once `status` is `approved`
    or `edited`, and nothing may be in any other; `draft` is what the AI wrote. Undecided at `until` it is
    `timeout`. Times are in UTC."""

    approvalId: int
    taskId: str
    status: ApprovalStatus
    text: str
    draft: str
    reason: str | None
    askedAt: str
    until: str
    decidedAt: str | None


class AgentData(MediaReply):
    """Everything an agent needs to go on with a conversation.

    `tenantId`, `conversationId` and `contactId` are also what an agent injects into every MCP tool.
    `command` goes into the model's history. `leftTask` is there when a new contact was taken out of a task
    that its channel lacks; `returnsTo` in a digression: the task that a change to `back` goes to. `advanced`:
    the conversation went on by itself; all else is of the task that it reached. `approvalRequired`: what the
    AI writes in the task is put before a person, with the outcome `waiting`, and not sent before it is
    approved. `approval` is there once a text of the contact was.
    """

    conversationId: str
    contactId: str
    tenantId: str
    campaignId: str
    revision: int
    command: str | None
    taskId: str
    taskName: str
    taskType: str
    taskStatus: str | None
    prompt: str
    prefixHash: str
    routingParameters: JsonObject | None
    mcpServers: Sequence[str]
    mcpTools: Sequence[McpToolsReply]
    reachableTasks: Sequence[ReachableTaskReply]
    channel: str
    language: str
    supportedLanguages: Sequence[str]
    languageDetection: JsonObject | None
    hideTranscriptionToHuman: bool
    leftTask: NotRequired[str]
    returnsTo: NotRequired[str]
    advanced: NotRequired[Advanced]
    approvalRequired: NotRequired[Literal[True]]
    approval: NotRequired[ApprovalReply]


class HumanTaskRefused(TypedDict):
    """A text that was not put before a person, or a decision that was not taken: what has been decided
    holds. `accepted` are the outcomes that are possible now."""

    result: Literal[False]
    code: TextRefusalCode
    reason: str
    command: str
    accepted: Sequence[HumanOutcome]
    taskName: str
    taskStatus: str | None
    approval: ApprovalReply
    revision: int


class TaskChanged(AgentData):
    result: Literal[True]


class FillableIn(TypedDict):
    """A task, by id and name, with those of its tools that can fill a variable."""

    taskId: str
    task: str
    tools: Sequence[str]


class MissingVariableReply(TypedDict):
    """`fillableBy`: `convMiner` where the dialogue can fill it, and the current task's tools that can.
    `fillableIn`: every task with a tool that can, the nearest first."""

    varId: str
    name: str
    type: str
    fillableBy: Sequence[str]
    fillableIn: Sequence[FillableIn]


class ConditionPartReply(TypedDict):
    """A comparison or `has()` as it was written, with the values that it has read, by their names in it."""

    expression: str
    truth: TruthName
    values: JsonObject


class ConditionReply(TypedDict):
    """The condition that refused a change, of the connection or of the task. `wouldHold` are conditions, each
    of which would make it true if nothing else changed."""

    of: Literal["task", "connection"]
    when: str
    truth: TruthName
    parts: Sequence[ConditionPartReply]
    wouldHold: Sequence[str]


TaskRefused = TypedDict(
    "TaskRefused",
    {
        "result": Literal[False],
        "code": str,
        "reason": str,
        "command": str,
        "from": str,
        "missing": Sequence[MissingVariableReply],
        "reachableTasks": Sequence[ReachableTaskReply],
        "revision": int,
        "condition": NotRequired[ConditionReply],
        "advanced": NotRequired[Advanced],
    },
)


class ContactEndReply(TypedDict):
    """`status` is what the conversation was when the contact ended; `summary` is null where none was written.

    `handlerError` tells why the closure handler gave no usable answer, null when all was well.
    """

    conversationId: str
    contactId: str
    status: Phase
    revision: int
    summary: str | None
    handlerError: str | None
    command: str | None


class ErasureReply(TypedDict):
    """The receipt of an erasure. `erasedAt` is in UTC."""

    conversationId: str
    erasedAt: str


class PromptParts(TypedDict):
    prefix: str
    volatile: str


class PromptReply(TypedDict):
    """`suggestedTasks` are ids of the tasks that the prompt tells the model to go on with. `approval` is
    there once a text of the contact was put before a person."""

    prompt: str
    revision: int
    memoryRevision: int
    prefixHash: str
    parts: PromptParts
    memoryFresh: bool
    command: str | None
    suggestedTasks: Sequence[str]
    approval: NotRequired[ApprovalReply]


class UtteranceReply(TypedDict):
    conversationId: str
    messageId: str
    duplicate: bool
    revision: int
    language: str
    command: str | None
    advanced: NotRequired[Advanced]


class MemoryWritten(TypedDict):
    revision: int
    memoryRevision: int
    advanced: NotRequired[Advanced]


class MemoryDescription(TypedDict):
    name: str
    value: str


class MemoryVariable(TypedDict):
    """`sensitive` stands beside the values of sensitive variables, as in the document; `stale` and `ageS`, in
    seconds since it was written or confirmed, beside values that grow old."""

    varId: str
    name: str
    type: str
    value: object
    updatedBy: str | None
    updatedAt: str | None
    contactId: str
    descriptionForLLM: Sequence[MemoryDescription] | None
    sensitive: NotRequired[bool | SensitiveKind]
    stale: NotRequired[bool]
    ageS: NotRequired[int]


class ConflictReply(TypedDict):
    """The value that does not count, where user and tool contradict each other. `source` is as in
    `ProvenanceReply`, `at` in UTC."""

    value: object
    source: str
    updatedBy: str | None
    messageId: str | None
    at: str | None


class ProvenanceReply(TypedDict):
    """`source` is `tool`, or what heard the value in the dialogue; `messageId` is where. `at` is in UTC.
    `superseded` is the value that it took the place of, or that does not count beside it. `confidence` is the
    model's, from 0 to 1, where it gave one."""

    source: str
    messageId: str | None
    at: str | None
    superseded: object
    confidence: NotRequired[float]
    conflict: NotRequired[ConflictReply]


class KnownVariable(MemoryVariable):
    """`provenance` is null while there is no value."""

    provenance: ProvenanceReply | None


class MemoryDump(TypedDict):
    tenant: JsonObject
    vars: Sequence[KnownVariable]
    revision: int
    memoryRevision: int


class FixedTarget(msgspec.Struct, frozen=True):
    """A task that can be asked for, by its id: its part of a list up to its description, where the first
    one's begins the list, and from there to what is missing."""

    task_id: str
    head: bytes
    rest: bytes


@dataclass(frozen=True, slots=True)
class FixedParts:
    """JSON texts, bytes of UTF-8. `task` and `conversation` are members of the reply's object, the second
    those that follow from language and channel; `media_reads` are what templates of voices and models read
    beside those. `tools` is cut where the value of a variable goes, whose ids are in `tool_values`; where
    some of them have conditions, they are put together for each reply. `targets` are the tasks of
    `reachable_tasks`, `required` the ids of all variables that they require."""

    task: bytes
    conversation: bytes
    media_reads: Reads
    tools: Sequence[bytes]
    tool_values: Sequence[str]
    conditional_tools: bool
    targets: Sequence[FixedTarget]
    required: Sequence[str]

    @property
    def weight(self) -> int:
        """In bytes."""
        targets = [part for target in self.targets for part in (target.head, target.rest)]
        return sum(map(len, (self.task, self.conversation, *self.tools, *targets)))

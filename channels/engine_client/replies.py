"""The engine's replies as an agent reads them. Fields that are not named here are ignored and kinds are plain
texts, so that an engine that knows more, another type of task for example, is understood too.

Errors are named by what the agent does next:

EngineError
├── EngineUnavailable    nothing usable came back, however often it was asked: do without, or say sorry
├── StateConflict        the conversation is not as the agent thinks: load it anew, then decide
├── RequestRefused       the request cannot be taken as it is: a mistake of the agent or its operator
└── EngineMisbehaved     the answer is none of the engine's: a wrong address, or a bug behind it

A change of task that is refused is none of these: it is data, see `TaskRefused`.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from flow_engine.values import JsonValue


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel)


# --- media -----------------------------------------------------------------------------------------


class LlmSettings(Reply):
    provider: str | None = None
    model: str | None = None
    temperature: float | None = None


class Voice(Reply):
    provider: str | None = None
    voice: str | None = None
    speed: float | None = None


class TtsSettings(Reply):
    """`active` is the entry for the conversation's language."""

    active: Voice | None = None


class VadSettings(Reply):
    """Durations in seconds."""

    activation_threshold: float | None = None
    min_silence_duration: float | None = None
    prefix_padding_duration: float | None = None


class LanguageDetection(Reply):
    enable_language_detection: bool = False


# --- tasks and tools -------------------------------------------------------------------------------


class ConditionState(Reply):
    """Whether the condition before a task is met, and the flow's words for it."""

    met: bool
    reason: str = ""


class Advanced(Reply):
    """Names of the tasks between which the conversation went on without being asked to."""

    from_task: Annotated[str, Field(alias="from")]
    to: str


class ReachableTask(Reply):
    """A task that can be asked for; variables by name. `condition` of None: it has none."""

    task_id: str
    name: str
    type: str
    description: str
    required_variables: tuple[str, ...] = ()
    missing_variables: tuple[str, ...] = ()
    condition: ConditionState | None = None

    @property
    def can_be_entered(self) -> bool:
        """As far as was known when the reply was made."""
        return not self.missing_variables and (self.condition is None or self.condition.met)

    def line(self, name: str) -> str:
        """What a model reads of it, under the name that the model is to use."""
        line = f"- {name} ({self.type}): {self.description}"
        if self.required_variables:
            line += f" Requires: {', '.join(self.required_variables)}."
        if self.missing_variables:
            line += f" Still missing: {', '.join(self.missing_variables)}."
        if self.condition is not None and not self.condition.met:
            line += f" Not open yet: {' '.join(self.condition.reason.split())}"
        return line


class ToolParameter(Reply):
    """By the strategy `assignment_value` is a `fixed` value, the id of a `variable`, or a hint for the model
    (`prompt`). A parameter with an unknown strategy is the model's to fill in."""

    parameter_name: str
    assignment_strategy: str
    assignment_value: str


class SelectedTool(Reply):
    """`result_mapping`: by variable id a JSONPath into what the tool answers."""

    tool_name: str
    parameters: tuple[ToolParameter, ...] = ()
    result_mapping: Mapping[str, str] = Field(default_factory=dict[str, str])


class ServerTools(Reply):
    """The tools of one MCP server that the current task uses."""

    server_name: str
    url: str
    tools: tuple[SelectedTool, ...] = ()


class Routing(Reply):
    """Whom a HUM or AIS task asks for."""

    agent_skills: tuple[str, ...] = ()
    agent_optional_skills: tuple[str, ...] = ()
    agent_ids: tuple[str, ...] = ()


class ApprovalState(Reply):
    """The text that was the last to wait for a person, and what has become of it: `waiting`, `approved`,
    `edited`, `rejected`, `timeout`, `withdrawn`, or what a later engine says. Only an approved or edited
    `text` may be sent; `draft` is what the AI wrote. `until` has its zone."""

    model_config = ConfigDict(populate_by_name=True)

    approval_id: int
    status: str
    text: str
    draft: str
    reason: str | None = None
    until: AwareDatetime


WITH_PERSON: Final = ("connected", "human")
OF_PERSONS: Final = (*WITH_PERSON, "routing")
"""Statuses of a task in which a person talks to the user, or is being asked to."""


class AgentData(Reply):
    """Everything an agent needs to go on with a conversation. `user_interaction_timeout` in seconds;
    `returns_to` is the task to which `back` leads, None where it leads nowhere. `approval_required`: what
    the model writes is put before a person, and nothing of it is sent before."""

    conversation_id: str
    contact_id: str
    tenant_id: str
    campaign_id: str | None = None
    revision: int
    command: str | None
    task_id: str
    task_name: str
    task_type: str
    task_status: str | None = None
    prompt: str
    prefix_hash: str
    routing_parameters: Routing | None = None
    mcp_tools: tuple[ServerTools, ...] = ()
    reachable_tasks: tuple[ReachableTask, ...] = ()
    returns_to: str | None = None
    channel: str
    language: str
    supported_languages: tuple[str, ...] = ()
    language_detection: LanguageDetection | None = None
    llm: LlmSettings | None = None
    tts: TtsSettings | None = None
    vad: VadSettings | None = None
    allow_interruptions_on_start: bool = True
    allow_interruptions: bool = True
    user_interaction_timeout: float | None = None
    approval_required: bool = False
    approval: ApprovalState | None = None

    @property
    def is_with_person(self) -> bool:
        """Whether a person talks to the user now: then no model does."""
        return self.task_status in WITH_PERSON

    @property
    def belongs_to_person(self) -> bool:
        """Whether a person talks to the user now, or is being asked to."""
        return self.task_status in OF_PERSONS


class TaskChanged(AgentData):
    result: Literal[True]


class FillableIn(Reply):
    """A task with those of its tools that can fill a variable."""

    task: str
    tools: tuple[str, ...] = ()


class MissingVariable(Reply):
    """`fillable_by`: `convMiner` where the dialogue can fill it, and the task's tools that can; `fillable_in`
    the tasks that have such tools, the nearest first."""

    var_id: str
    name: str
    type: str
    fillable_by: tuple[str, ...] = ()
    fillable_in: tuple[FillableIn, ...] = ()


class TaskRefused(Reply):
    """The conversation stays in the task `from_task`, unless it has `advanced` by itself; `missing` are the
    variables without which the task cannot be entered."""

    result: Literal[False]
    code: str
    reason: str
    command: str
    from_task: Annotated[str, Field(alias="from")]
    missing: tuple[MissingVariable, ...] = ()
    reachable_tasks: tuple[ReachableTask, ...] = ()
    revision: int
    advanced: Advanced | None = None


ChangeTaskReply: TypeAlias = Annotated[TaskChanged | TaskRefused, Field(discriminator="result")]


class TextRefused(Reply):
    """A text was not put before a person, or a decision not taken: what `approval` says holds."""

    result: Literal[False]
    code: str
    reason: str
    accepted: tuple[str, ...] = ()
    task_name: str = ""
    task_status: str | None = None
    approval: ApprovalState | None = None


HumanTaskReply: TypeAlias = AgentData | TextRefused


# --- dialogue and memory ---------------------------------------------------------------------------


class Notified(Reply):
    """`command` says, once, that the conversation moved without the agent: "/human_task_failed timeout", or
    "/start_task …" where it advanced by itself."""

    command: str | None = None


class PromptReply(Notified):
    """`memory_fresh`: the last user turn has been read for values. `prefix_hash` changes with the task.
    `revision` and `memory_revision` count from 1, and never back."""

    prompt: str
    revision: int
    memory_revision: int
    prefix_hash: str
    memory_fresh: bool
    approval: ApprovalState | None = None


class UtteranceReply(Notified):
    duplicate: bool
    revision: int
    language: str


class ContactEndReply(Notified):
    """`status` is what the conversation is now: `closed`, or `between_contacts`."""

    status: str
    revision: int


class Description(Reply):
    name: str
    value: str


class MemoryVariable(Reply):
    """A variable without a value has null; `updated_at` is ISO 8601 in UTC."""

    var_id: str
    name: str
    type: str
    value: object
    updated_by: str | None = None
    updated_at: str | None = None
    contact_id: str
    description_for_llm: Annotated[tuple[Description, ...] | None, Field(alias="descriptionForLLM")] = None


class MemoryDump(Reply):
    tenant: Mapping[str, object]
    vars: tuple[MemoryVariable, ...]
    revision: int
    memory_revision: int

    def value_of(self, variable: str) -> JsonValue:
        """By id, else by name, as JSON holds it; None for no value and for an unknown variable."""
        by_id = (v.value for v in self.vars if v.var_id == variable)
        by_name = (v.value for v in self.vars if v.name == variable)
        return cast("JsonValue", next(by_id, next(by_name, None)))


class MemoryWritten(Reply):
    """`advanced` where the conversation went on by what was written."""

    revision: int
    memory_revision: int
    advanced: Advanced | None = None


class ProblemFinding(BaseModel):
    model_config = ConfigDict(frozen=True)

    pointer: str
    code: str
    message: str


class Problem(BaseModel):
    """The problem document of an answer (RFC 9457). `accepted` is what would have gone instead."""

    model_config = ConfigDict(frozen=True)

    status: int
    code: str
    detail: str = ""
    errors: tuple[ProblemFinding, ...] = ()
    state: Mapping[str, object] = Field(default_factory=dict[str, object])
    accepted: tuple[str, ...] = ()


class EngineError(Exception):
    """Base of the tree. `problem` is the engine's own account (RFC 9457), None where it gave none."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem

    @property
    def code(self) -> str | None:
        return None if self.problem is None else self.problem.code

    @property
    def findings(self) -> tuple[ProblemFinding, ...]:
        """What is wrong with the request, each with its RFC 6901 pointer."""
        return () if self.problem is None else self.problem.errors


class EngineUnavailable(EngineError):
    """Not reached, too slow, or out of order for the moment, after every try failed: three, of 5 seconds
    each."""


class RequestRefused(EngineError):
    """A status 4xx other than 409, not tried again: unknown ids, or JSON that breaks a rule."""


class KeyRefused(EngineError):
    """Status 401 or 403: the same request may be taken once the key is put right."""


class StateConflict(EngineError):
    """Status 409, a request refused for where the conversation is. `problem.state` has the state and
    `problem.accepted` what would go."""


class EngineMisbehaved(EngineError):
    """A status or a body that the engine never answers with, or an error of its own."""

"""Models of flows and their versions (F1, F2). Media settings are in `media.py`.

An attribute with a default may be missing in the document. What the published schema leaves unread
must not change a document's verdict, so it is not read strictly here either: each such place says so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, PlainValidator, ValidationInfo

from flow_engine import vocabulary
from flow_engine.documents import media
from flow_engine.documents.base import (
    Document,
    Entries,
    Items,
    Maybe,
    RequiredIf,
    ShapedBy,
    When,
    absent,
    listed_within_budget,
)
from flow_engine.documents.scalars import (
    ApiVersion,
    DateTime,
    Days,
    EnumValues,
    Flag,
    Number,
    SchemaVersion,
    Seconds,
    Sensitive,
    Text,
    Texts,
    Url,
)
from flow_engine.errors import pointer
from flow_engine.task_types import ROUTED_TYPES, TaskKind, kind_of

T = TypeVar("T")

ResultType = Literal["CL", "UNC", "UC", "Y", "UPS"]
Channels = Annotated[
    tuple[vocabulary.Channel, ...], listed_within_budget(lambda item: item in vocabulary.CHANNELS)
]
ResultTypes = Annotated[
    tuple[ResultType, ...], listed_within_budget(lambda item: item in get_args(ResultType))
]


class AiHelper(Document):
    """Settings of a helper; any property may stand here.

    All are in `model_extra`. Any JSON.
    """

    OPEN = True


def _is_few(least: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= 50


MINER_SETTINGS: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "enabled": ("true and false", lambda value: isinstance(value, bool)),
    "turns": ("a whole number from 1 to 50", _is_few(1)),
    "model": ("a text", lambda value: isinstance(value, str)),
    "prompt": ("a text", lambda value: isinstance(value, str)),
    "stalledAfter": ("a whole number from 0 to 50", _is_few(0)),
}
"""What the helper `convMiner` may set: what is accepted, and whether a value is; another is as if absent."""


class UiMetadata(Document):
    """What the designer's editor keeps for itself; any property may stand here."""

    OPEN = True


class Checkpoint(Document):
    id: Text
    name: Text
    prompt: Text
    required: Flag = False
    when: Maybe[Text] = None


_needed_by_multi_contact = RequiredIf(When("multi_contact", True), "when 'multiContact' is true")


class ClosureConfig(Document):
    """What the end of a contact does to its conversation (F30). The time limit is in seconds."""

    multi_contact: Flag
    conversation_time_limit: Annotated[Maybe[Number], _needed_by_multi_contact] = absent()
    custom_handler: Annotated[Maybe[Url], _needed_by_multi_contact] = absent()


# --- MCP --------------------------------------------------------------------------------------


class IncludedTool(Document):
    tool_name: Maybe[Text] = None
    ui_tool_description: Maybe[Text] = None


class McpServer(Document):
    name: Text
    url: Url
    included_tools: Items[IncludedTool]


class McpToolParameter(Document):
    """`assignment_value` is a variable's id, a fixed value or a prompt, as the strategy says."""

    parameter_name: Text
    assignment_strategy: Literal["variable", "fixed", "prompt"]
    assignment_value: Text


class McpToolParametersMap(Document):
    """A tool that a task selects. Where it tells neither `writes` nor `resultMapping`, it may write any
    variable."""

    tool_name: Text
    tool_parameters: Items[McpToolParameter] = ()
    when: Maybe[Text] = None
    writes: Texts = ()
    result_mapping: Entries[Text] = Field(default_factory=dict[str, str])

    @property
    def written(self) -> frozenset[str] | None:
        """Ids of the variables that the tool writes, None where the document does not tell."""
        if "writes" not in self.model_fields_set and not self.result_mapping:
            return None
        return frozenset((*self.writes, *self.result_mapping))

    def may_write(self, var_id: str) -> bool:
        return self.written is None or var_id in self.written


class McpToolSelection(Document):
    mcp_server_name: Text
    selected_tools: Items[McpToolParametersMap]


# --- tasks ------------------------------------------------------------------------------------


class WaitingMessagesConfiguration(Document):
    generation_strategy: Literal["fixed", "prompt"]
    prompt: Annotated[
        Maybe[Text],
        RequiredIf(When("generation_strategy", "prompt"), "when 'generationStrategy' is 'prompt'"),
    ] = absent()
    messages_list: Annotated[
        Items[media.LocalizedText],
        RequiredIf(When("generation_strategy", "fixed"), "when 'generationStrategy' is 'fixed'"),
    ] = absent(())


class RoutingParameters(Document):
    """How a human is found. Times in seconds; routing that outlasts `timeout` has failed (F34)."""

    timeout: Number
    agent_skills: Texts = ()
    agent_optional_skills: Texts = ()
    agent_ids: Texts = ()
    waiting_music: Maybe[Url] = None
    waiting_music_duration: Maybe[Number] = None
    waiting_messages_configuration: Maybe[WaitingMessagesConfiguration] = None


class TransitionParameter(Document):
    variable_id: Text
    required: Flag


class EntryCondition(Document):
    """What has to hold when the task is entered from another, and why, in words for people and models."""

    when: Text
    reason: Maybe[Text] = None


class ConnectionCondition(Document):
    """What has to hold when the task is left for one that follows it, and what comes of it. Without `when`
    nothing has to."""

    when: Maybe[Text] = None
    reason: Maybe[Text] = None
    advance: Maybe[vocabulary.Advance] = None


APPROVAL_TIMEOUT_S = 300
"""Seconds for which a text waits for a person where its task does not say."""

_MAY_NEED_A_HUMAN = When("type", *reversed(ROUTED_TYPES))


def _routing(value: object, info: ValidationInfo) -> object:
    if not _MAY_NEED_A_HUMAN.holds(info.data):
        return value
    return RoutingParameters.model_validate(value, context=info.context)


class Task(Document):
    """One model for the three task types: `type` decides which attributes mean something.

    HUM and AIS tasks must have `routingParameters`: the published schema states the rule in a schema that
    no document is checked against (F2). `channels` of None: all channels.
    """

    ALSO_READ = ("hideTranscriptionToHuman", "suspendTranscription")

    id: Text
    name: Maybe[Text] = None
    type: vocabulary.TaskType
    description: Text
    prompt: Text
    transition_parameters: Items[TransitionParameter]
    ai_helpers: Items[AiHelper] = ()
    channels: Channels | None = None
    mcp_tool_selection: Items[McpToolSelection] = ()
    closure_config: ClosureConfig
    enabled_checkpoints: Items[Checkpoint]
    connected_tasks: Texts = ()
    excluded_global_tasks: Texts = ()
    returns: Flag = False
    approval: Flag = False
    approval_timeout: Number = APPROVAL_TIMEOUT_S
    entry_condition: Maybe[EntryCondition] = None
    connection_conditions: Entries[ConnectionCondition] = Field(
        default_factory=dict[str, ConnectionCondition]
    )
    # Whatever stands here in an AIO task is unread by the schema; use `routing_parameters`.
    routing_given: Annotated[
        object,
        PlainValidator(_routing, json_schema_input_type=RoutingParameters),
        ShapedBy((_MAY_NEED_A_HUMAN,), always=None),
        RequiredIf(_MAY_NEED_A_HUMAN, "in tasks of type 'HUM' and 'AIS'"),
    ] = absent()

    @property
    def routing_parameters(self) -> RoutingParameters | None:
        """Present in every HUM and AIS task, None in an AIO task."""
        return self.routing_given if isinstance(self.routing_given, RoutingParameters) else None

    @property
    def kind(self) -> TaskKind:
        """What the task's type means, with its approval."""
        return kind_of(self.type, approval=self.approval)

    @property
    def effective_name(self) -> str:
        """The name that people and models use: `name` where it says something, else the id (F4)."""
        return self.name if self.name and self.name.strip() else self.id

    @property
    def hide_transcription_to_human(self) -> bool:
        """Unread by the schema, so anything but `true` is no (F40)."""
        return self._extra("hideTranscriptionToHuman") is True

    @property
    def suspend_transcription(self) -> bool:
        """HUM tasks: no dialogue is sent while a human is connected. An addition, unread by the schema
        as well, so anything but `true` is no (F40)."""
        return self.kind.transfers and self._extra("suspendTranscription") is True

    def _extra(self, name: str) -> object:
        return (self.model_extra or {}).get(name)


# --- flows ------------------------------------------------------------------------------------


_FOUND_BY_A_MODEL = tuple(name for name in vocabulary.VARIABLE_TYPES if name != "custom")


class Variable(Document):
    """`prompt` tells the model how to find the value; only custom variables do without."""

    id: Text
    name: Text
    type: vocabulary.VariableType
    sensitive: Sensitive = False
    fresh_for: Maybe[Seconds] = None
    precedence: Maybe[vocabulary.Precedence] = None
    enum_values: EnumValues = ()
    prompt: Annotated[
        Maybe[Text],
        RequiredIf(When("type", *_FOUND_BY_A_MODEL), "unless 'type' is 'custom'"),
    ] = absent()

    @property
    def by_tools(self) -> bool:
        """Whether tools alone fill it, as `VariableSpec` has it."""
        return self.type == "custom" or self.sensitive == "card"


class Retention(Document):
    """For how long what is known of a conversation is kept after its last step, whatever its time limit."""

    days: Days


class ReasonOfContact(Document):
    name: Text
    prompt: Text


class ContactResult(Document):
    name: Text
    prompt: Text
    result_types: ResultTypes


class ScorecardCriterion(Document):
    name: Text
    prompt: Text
    weight: Number = 1


class ScoreScale(Document):
    min: Number
    max: Number


class Scorecard(Document):
    name: Text
    criteria: Items[ScorecardCriterion]
    scale: ScoreScale


class Flow(Document):
    """A flow of a campaign, without its versions (F1). Closed to other properties."""

    model_config = ConfigDict(extra="forbid")

    id: Text
    name: Text
    campaign_id: Text
    schema_version: SchemaVersion
    updated_by: Text
    updated_at: DateTime


Published = Annotated[T, RequiredIf(When("draft", False), "when 'draft' is false")]
"""Required unless the version is a draft."""

_SINGLE_CONTACT = ClosureConfig.model_validate({"multiContact": False})
_DEFAULT_MEDIA = media.MediaConfig(
    audio=media.AudioMediaConfig.model_validate({"presetId": "default"}), text=media.TextMediaConfig()
)


ConditionOf = Literal["task", "connection", "tool", "checkpoint"]


@dataclass(frozen=True, slots=True)
class PlacedCondition:
    """A `when` of a version and where it stands, as an RFC 6901 pointer. `task_id` is the task that it is in,
    None in a checkpoint of the version; `target_id` the one that a connection leads to."""

    pointer: str
    when: str
    of: ConditionOf
    task_id: str | None = None
    target_id: str | None = None


class FlowVersion(Document):
    """A version of a flow: all that a conversation runs by. Closed to other properties.

    A draft may lack everything but `draft`. The attributes are then neutral (empty, or the platform's
    default), so that no reader has to ask for None; `model_fields_set` tells what is really there. Times are
    RFC 3339 texts.
    """

    model_config = ConfigDict(extra="forbid")

    draft: Flag
    id: Published[Text] = absent("")
    schema_version: Published[SchemaVersion] = absent("")
    conversational_flow_id: Published[Text] = absent("")
    global_prompt: Published[Text] = absent("")
    channels: Published[Channels] = absent(())
    mandatory_channels: Published[Channels] = absent(())
    closure_config: Published[ClosureConfig] = absent(_SINGLE_CONTACT)
    media_config: Published[media.MediaConfig] = absent(_DEFAULT_MEDIA)
    language_detection: media.LanguageDetectionConfig = media.LanguageDetectionConfig()
    default_language: Published[Text] = absent("")
    supported_languages: Published[Texts] = absent(())
    system_prompts_language: Published[Text] = absent("")
    api_version: Published[ApiVersion] = absent("")
    variables: Published[Items[Variable]] = absent(())
    ui_metadata: Published[UiMetadata] = absent(UiMetadata())
    mcp_servers: Published[Items[McpServer]] = absent(())
    ai_helpers: Published[Items[AiHelper]] = absent(())
    tasks: Published[Items[Task]] = absent(())
    first_task: Published[Text] = absent("")
    global_tasks: Texts = ()
    retention: Maybe[Retention] = None
    checkpoints: Published[Items[Checkpoint]] = absent(())
    reasons_of_contact: Published[Items[ReasonOfContact]] = absent(())
    results: Published[Items[ContactResult]] = absent(())
    scorecards: Items[Scorecard] = ()
    created_by: Published[Text] = absent("")
    created_at: Published[DateTime] = absent("")

    def ways_from(self, task: Task) -> tuple[str, ...]:
        """The tasks that can follow a task, each once: those it names, then the global ones that it does not
        exclude."""
        excluded = {*task.excluded_global_tasks, task.id}
        everywhere = (task_id for task_id in self.global_tasks if task_id not in excluded)
        return tuple(dict.fromkeys((*task.connected_tasks, *everywhere)))

    def conditions(self) -> Iterator[PlacedCondition]:
        """Every condition, in the order of the document."""
        for t, task in enumerate(self.tasks):
            at = pointer("tasks", t)
            if task.entry_condition is not None:
                yield PlacedCondition(f"{at}/entryCondition/when", task.entry_condition.when, "task", task.id)
            for target_id, connection in task.connection_conditions.items():
                if connection.when is not None:
                    place = at + pointer("connectionConditions", target_id, "when")
                    yield PlacedCondition(place, connection.when, "connection", task.id, target_id)
            for s, selection in enumerate(task.mcp_tool_selection):
                for n, tool in enumerate(selection.selected_tools):
                    if tool.when is not None:
                        place = at + pointer("mcpToolSelection", s, "selectedTools", n, "when")
                        yield PlacedCondition(place, tool.when, "tool", task.id)
            for c, checkpoint in enumerate(task.enabled_checkpoints):
                if checkpoint.when is not None:
                    place = at + pointer("enabledCheckpoints", c, "when")
                    yield PlacedCondition(place, checkpoint.when, "checkpoint", task.id)
        for c, checkpoint in enumerate(self.checkpoints):
            if checkpoint.when is not None:
                yield PlacedCondition(pointer("checkpoints", c, "when"), checkpoint.when, "checkpoint")

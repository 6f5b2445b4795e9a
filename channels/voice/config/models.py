"""A config of version "2.0": everything about the business behind a phone number (V1-V5).

The models hold what the file says, with defaults for what it leaves out. Whatever is a template, a condition
or a path there is read here already.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from adapters.outbound.policy import parse_target as parse_http_target
from channels.http_tools import documents
from channels.http_tools.documents import Text, ToolName
from channels.http_tools.json_paths import JsonPath
from channels.http_tools.placeholders import Template
from channels.http_tools.scope import Scope
from channels.http_tools.templates import JsonTemplate, Mistakes
from channels.voice.call.ports import AudioFormat, CustomVoice, SessionSettings, TurnDetection
from channels.voice.carriers.call_control import parse_target
from channels.voice.config.declarations import Declaration, NotDeclarations, declarations, template_parts
from channels.voice.config.vocabulary import DEFAULT_VOICE, is_known, read_voice, wording
from flow_engine.conditions.lexing import Mistake, Path
from flow_engine.documents.findings import reading_beside
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundRefused
from flow_engine.values import JsonValue

MAX_DURATION_S = 4 * 3600.0

_BASE_URL = re.compile(r"https?://[^/?#\s@]+(?:/[^?#\s]*)?", re.IGNORECASE)
_ADDRESS_EXAMPLE = "accepted is an address such as https://api.example.com, without query or credentials"


def _can_be_called(value: str) -> str:
    try:
        parse_target(value)
    except CorrectTheInput as error:
        raise PydanticCustomError("call_target", "{detail}", {"detail": error.detail}) from error
    return value


Target: TypeAlias = Annotated[Text, AfterValidator(_can_be_called)]
"""A phone number or SIP address that a call can be given to."""
Milliseconds: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=60_000)]


def _address(value: str) -> str:
    if not _BASE_URL.fullmatch(value):
        raise PydanticCustomError("address", _ADDRESS_EXAMPLE)
    try:
        parse_http_target(value)
    except OutboundRefused as refused:
        raise PydanticCustomError("address", "{why}; " + _ADDRESS_EXAMPLE, {"why": str(refused)}) from refused
    return value.rstrip("/")


class Agent(documents.Document):
    """Who answers. `type` is for logs; `language` is a BCP 47 tag, that of what the agent says by itself and,
    where the config names it, what callers are expected to speak."""

    id: Text
    name: Text
    type: Text
    language: Text = "fr-FR"


class Vad(documents.Document):
    """When the model takes a turn as begun and ended; `threshold` is from 0 to 1, durations in
    milliseconds."""

    threshold: float = Field(default=0.5, ge=0, le=1, strict=True)
    silence_duration_ms: Milliseconds = 500
    prefix_padding_ms: Milliseconds = 300


class Transcription(documents.Document):
    model: Text = "whisper-1"


def _voice(value: object, info: ValidationInfo) -> str | CustomVoice:
    if (voice := read_voice(cast("JsonValue", value))) is None:
        raise PydanticCustomError("voice", "accepted is the name of a voice, or an object with its `id`")
    return voice


Voice: TypeAlias = Annotated[str | CustomVoice, documents.Compiled(_voice)]


class OpenAi(documents.Document):
    """The model. `temperature` is accepted and dropped: the model's protocol has none any more."""

    model: Text = "gpt-realtime"
    voice: Voice = DEFAULT_VOICE
    temperature: float | None = Field(default=None, strict=True)
    vad: Vad = Vad()
    input_audio_format: AudioFormat = "g711_ulaw"
    output_audio_format: AudioFormat = "g711_ulaw"
    input_audio_transcription: Transcription | None = Transcription()

    @property
    def spoken_voice(self) -> str | CustomVoice:
        """The voice of the config; the default one where the config's is unknown to the model."""
        return self.voice if is_known(self.voice) else DEFAULT_VOICE


class ResponseMapping(documents.Document):
    """Where the reply has what a session is made of."""

    instructions: documents.PathText
    tools: documents.PathText | None = None
    voice: documents.PathText | None = None
    ctx_init: dict[str, documents.PathText] = Field(default_factory=dict[str, JsonPath])


class ConfigUrlSession(documents.HttpRequest):
    """Instructions and tools are fetched from a URL for every call. Without them the call is refused."""

    mode: Literal["config_url"]
    response_mapping: ResponseMapping


_NO_TOOLS = JsonTemplate.parse([])


@dataclass(frozen=True, slots=True)
class ToolDeclarations:
    """The function declarations of a config. Their texts are templates, their names are not."""

    names: tuple[str, ...] = ()
    template: JsonTemplate = _NO_TOOLS

    def declarations(self, scope: Scope) -> tuple[Declaration, ...]:
        return tuple(cast("list[Declaration]", self.template.render(scope)))


def _inline_tools(value: object, info: ValidationInfo) -> ToolDeclarations:
    given = cast("JsonValue", value)
    found: list[tuple[tuple[str | int, ...], PydanticCustomError]] = []
    declared: tuple[Declaration, ...] = ()
    try:
        declared = declarations(given)
    except NotDeclarations as error:
        for index, message in error.found:
            fault = PydanticCustomError("tool_declaration", "{message}", {"message": message})
            found.append((() if index is None else (index,), fault))
    try:
        JsonTemplate.parse(template_parts(given))
    except Mistakes as error:
        found += [(at, documents.mistake_error(mistake)) for at, mistake in error.found]
    if found:
        raise documents.refused_at(found)
    names = tuple(str(each["name"]) for each in declared)
    return ToolDeclarations(names, JsonTemplate.parse([dict(each) for each in declared]))


InlineTools: TypeAlias = Annotated[ToolDeclarations, documents.Compiled(_inline_tools)]


class InlineSession(documents.Document):
    """Instructions and tools are in the config."""

    mode: Literal["inline"]
    instructions: documents.TemplateText
    tools: InlineTools = Field(default_factory=ToolDeclarations)


def _facts(value: object, info: ValidationInfo) -> Mapping[str, JsonValue]:
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "accepted is an object")
    return cast("dict[str, JsonValue]", value)


Tenant: TypeAlias = Annotated[Mapping[str, JsonValue], documents.Compiled(_facts)]


class FlowSession(documents.Document):
    """A flow of the engine at the URL `engine_url` leads the call: version `version`, or whatever `tag` of
    `flow_id` points to. `tenant` is what the flow's templates know as `$tenant`. `transfers` maps the skills
    and agent ids of its human tasks to phone numbers or SIP addresses, `transfer_to` is for all others. The
    key of the engine's API is in the environment, under the name `api_key_env`; a server of tools that does
    not answer within `mcp_timeout_s` seconds has failed."""

    mode: Literal["flow"]
    engine_url: Text
    version: Text | None = None
    flow_id: Text | None = None
    tag: Text | None = None
    channel: Literal["phone"] = "phone"
    api_key_env: Annotated[Text, AfterValidator(documents.names_a_key)] = Field(
        default="FLOW_ENGINE_API_KEY", validate_default=True
    )
    tenant: Tenant = Field(default_factory=dict[str, JsonValue])
    transfers: dict[str, Target] = Field(default_factory=dict[str, str])
    transfer_to: Target | None = None
    mcp_timeout_s: float = Field(default=10.0, gt=0, le=60, strict=True)

    _engine_address = field_validator("engine_url")(_address)

    _one_version = model_validator(mode="wrap")(reading_beside(documents.version_choice))


_SESSIONS: Mapping[object, type[ConfigUrlSession | InlineSession | FlowSession]] = {
    "config_url": ConfigUrlSession,
    "inline": InlineSession,
    "flow": FlowSession,
}


def _session(value: object, info: ValidationInfo) -> ConfigUrlSession | InlineSession | FlowSession:
    """Chosen by `mode` here, as a union would put its own name into the place of an error."""
    mode = cast("dict[object, object]", value).get("mode") if isinstance(value, dict) else None
    model = _SESSIONS.get(mode) if isinstance(mode, str) else None
    if model is None:
        raise PydanticCustomError(
            "session_mode", "accepted is an object with `mode` 'config_url', 'inline' or 'flow'"
        )
    return model.model_validate(value, context=info.context)


Session: TypeAlias = Annotated[ConfigUrlSession | InlineSession | FlowSession, documents.Compiled(_session)]


def _message_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    if (fields.get("on_block") == "message") != (fields.get("message") is not None):
        yield PydanticCustomError(
            "block_message", "accepted is `message` where `on_block` is 'message', and only there"
        )


class PreCallCheck(documents.HttpRequest):
    """A question to the business whether the call is taken: refused, where `block_if` holds for the reply."""

    name: Text
    block_if: documents.ConditionText
    on_block: Literal["hangup", "message"] = "hangup"
    message: documents.TemplateText | None = None

    _message_is_spoken = model_validator(mode="wrap")(reading_beside(_message_faults))


def _field_path(value: object, info: ValidationInfo) -> Path | None:
    if value is None:
        return None
    try:
        template = Template.parse("{{" + value + "}}") if isinstance(value, str) else None
    except Mistake:
        template = None
    placeholders = template.placeholders if template else ()
    if len(placeholders) != 1 or placeholders[0].filters:
        raise PydanticCustomError(
            "field_path", "accepted is a path such as session.customer.firstName, without braces, or null"
        )
    return placeholders[0].path


FieldPath: TypeAlias = Annotated[Path | None, documents.Compiled(_field_path)]


def _greeting_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    if fields.get("condition_field") is not None and fields.get("known_customer") is None:
        yield PydanticCustomError("greeting", "`condition_field` needs a `known_customer`")


class Greeting(documents.Document):
    """What makes the model speak first: `known_customer` where `condition_field` has a value."""

    unknown_customer: documents.TemplateText
    known_customer: documents.TemplateText | None = None
    condition_field: FieldPath = None

    _known_has_words = model_validator(mode="wrap")(reading_beside(_greeting_faults))


class OutcomeRule(documents.Document):
    """The call's outcome where `flag` is set in ctx and no rule of a smaller `priority` applies. Null applies
    always."""

    flag: Text | None
    outcome: Text
    priority: Annotated[int, Field(strict=True)]


class Lifecycle(documents.Document):
    """The business's bookkeeping of a call."""

    on_start: documents.LifecycleCall | None = None
    on_end: documents.LifecycleCall | None = None
    on_no_action: documents.LifecycleCall | None = None
    outcome_rules: tuple[OutcomeRule, ...] = ()


class Fallback(documents.Document):
    """For a caller whose call has no model: `message` is spoken by the carrier, the call given to `number`, a
    phone number or SIP address."""

    message: Text | None = None
    number: Target | None = None


class VoiceConfig(documents.Document):
    """`max_duration_s` seconds end a call that never ends. After `silence_s` seconds in which nobody spoke,
    the agent asks whether the caller is still there. `apology` is spoken when a call is refused."""

    version: Literal["2.0"]
    agent: Agent
    openai: OpenAi = OpenAi()
    session: Session
    pre_call_checks: tuple[PreCallCheck, ...] = ()
    greeting: Greeting | None = None
    lifecycle: Lifecycle = Lifecycle()
    tools: dict[ToolName, documents.ToolConfig] = Field(
        default_factory=dict[str, documents.HttpTool | documents.BuiltinTool]
    )
    base_url: Text | None = None
    max_duration_s: float = Field(default=3600.0, gt=0, le=MAX_DURATION_S, strict=True)
    silence_s: float | None = Field(default=None, ge=1, le=600, strict=True)
    apology: Text | None = None
    fallback: Fallback = Fallback()

    @field_validator("base_url")
    @classmethod
    def _base_address(cls, value: str | None) -> str | None:
        return None if value is None else _address(value)

    @property
    def spoken_apology(self) -> str:
        return self.apology or wording(self.agent.language).apology

    def settings(self, instructions: str = "") -> SessionSettings:
        """The model as the config has it, to do what `instructions` say."""
        openai, transcription = self.openai, self.openai.input_audio_transcription
        # By default a language is only assumed, and a recogniser that is set to the wrong one hears nonsense.
        spoken = self.agent.language if "language" in self.agent.model_fields_set else None
        return SessionSettings(
            instructions=instructions,
            model=openai.model,
            voice=openai.spoken_voice,
            input_format=openai.input_audio_format,
            output_format=openai.output_audio_format,
            transcription_model=transcription.model if transcription else None,
            language=spoken.partition("-")[0].lower() if spoken else None,
            turn_detection=TurnDetection(
                threshold=openai.vad.threshold,
                silence_duration_ms=openai.vad.silence_duration_ms,
                prefix_padding_ms=openai.vad.prefix_padding_ms,
            ),
            silence_s=self.silence_s,
        )

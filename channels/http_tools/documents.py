"""Requests and tools as a config writes them (V6, V7), read into frozen models.

Every template, condition and JSONPath is read when the model is made, so that a mistake is found with its
place before any call comes in.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, cast

import pydantic
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from adapters.models.argument_schemas import schema_fault
from adapters.outbound.client import RESERVED_HEADERS
from channels.http_tools import expressions, json_paths, scope
from channels.http_tools.templates import JsonTemplate, Mistakes, Template, UrlTemplate
from flow_engine.conditions.lexing import Mistake
from flow_engine.documents.findings import reading_beside
from flow_engine.errors import Finding, pointer
from flow_engine.ports.outbound import header_key, is_header_text
from flow_engine.values import JsonValue, listed

Method = Literal["GET", "POST", "PATCH", "PUT", "DELETE"]

DEFAULT_TIMEOUT_S: Final = 10.0
MOST_TIMEOUT_S: Final = 120.0
TOOL_NAME: Final = r"^[A-Za-z0-9_-]{1,64}$"

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BASE_URL_USED = re.compile(r"\{\{\s*base_url\b")
_ENV = re.compile(r"\$\{env:([^{}]*)\}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_ONLY_WITH_URL: Final = frozenset({"method", "params", "headers", "body"})


@dataclass(frozen=True, slots=True)
class Compiled:
    """Has pydantic make a field with `read`, and look no further into the field's type."""

    read: Callable[[object, pydantic.ValidationInfo], object]

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.read)


def compiled(parse: Callable[[str], object]) -> Compiled:
    """For a field that the config writes as text and the model holds as what `parse` makes of it. What
    `parse` raises as a mistake is the field's error."""
    return Compiled(lambda value, info: _read(parse, value))


def _read(parse: Callable[[str], object], value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "accepted is text")
    try:
        return parse(value)
    except Mistake as mistake:
        raise mistake_error(mistake) from mistake


def _step_condition(value: object, info: pydantic.ValidationInfo) -> object:
    """The names of the step's extracts are known; where they could not be read, any name may be one."""
    extract: Mapping[str, object] | None = info.data.get("extract")
    names = None if extract is None else frozenset(extract)
    return _condition(value, names)


def _condition(value: object, names: frozenset[str] | None = frozenset()) -> expressions.Condition:
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "accepted is text")
    condition, mistakes = expressions.Condition.read(value, names)
    if condition is None:
        raise refused_at(((), mistake_error(mistake)) for mistake in mistakes)
    return condition


def _json_template(value: object, *, answer: bool = False) -> JsonTemplate:
    try:
        return JsonTemplate.parse(cast("JsonValue", value), answer=answer)
    except Mistakes as mistakes:
        raise refused_at((at, mistake_error(mistake)) for at, mistake in mistakes.found) from mistakes


def _params(value: object) -> JsonTemplate:
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "accepted is an object")
    return _json_template(cast("object", value))


def mistake_error(mistake: Mistake) -> PydanticCustomError:
    return PydanticCustomError("mistake", "{mistake}", {"mistake": str(mistake)})


def refused_at(
    found: Iterable[tuple[tuple[str | int, ...], PydanticCustomError]],
) -> pydantic.ValidationError:
    """Each error at its place inside a field; pydantic puts the place of the field before it."""
    errors = [InitErrorDetails(type=error, loc=at, input=None) for at, error in found]
    return pydantic.ValidationError.from_exception_data("field", errors)


def _header(value: object, info: pydantic.ValidationInfo) -> Template:
    """A template in which `${env:NAME}` stands for a variable of the environment, read once. What a caller
    or a reply puts into the header is no reference."""
    template = cast("Template", _read(Template.parse, value))
    named = [name for part in template.parts if isinstance(part, str) for name in environment_names(part)]
    if faults := [fault for name in dict.fromkeys(named) for fault in _environment_faults(name)]:
        raise refused_at(((), fault) for fault in faults)
    parts = tuple(
        _ENV.sub(lambda found: os.environ[found[1]], part) if isinstance(part, str) else part
        for part in template.parts
    )
    fixed = "".join(part if isinstance(part, str) else "0" for part in parts)
    if not is_header_text(fixed):
        raise PydanticCustomError(
            "header_text", "accepted is one line of ASCII characters, with no space at its ends"
        )
    return Template(parts)


def _header_faults(headers: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    if wrong := [name for name in headers if not _HEADER_NAME.fullmatch(name)]:
        yield PydanticCustomError(
            "header_name",
            "no names of headers: {wrong}; accepted is a name such as X-Api-Key",
            {"wrong": listed(wrong)},
        )
    if reserved := [name for name in headers if name.lower() in RESERVED_HEADERS]:
        yield PydanticCustomError(
            "header_reserved",
            "only the HTTP client sets {reserved}; accepted are other names, such as X-Api-Key",
            {"reserved": listed(reserved)},
        )


def environment_names(header: str) -> list[str]:
    """The variables that a header's text names as `${env:NAME}`."""
    return [found[1] for found in _ENV.finditer(header)]


def _environment_faults(name: str) -> Iterator[PydanticCustomError]:
    if not _ENV_NAME.fullmatch(name):
        yield PydanticCustomError("env_name", "accepted is a variable such as ${env:CRM_TOKEN}")
    elif not (value := os.environ.get(name, "")).strip() or not value.isprintable():
        yield PydanticCustomError(
            "env_missing",
            "the variable {name} is to be set in the environment, to one line of text",
            {"name": name},
        )


def _a_schema(value: dict[str, object]) -> dict[str, object]:
    if fault := schema_fault(value):
        raise PydanticCustomError("schema_invalid", "{reason}", {"reason": fault})
    if value.get("type") != "object":
        raise PydanticCustomError("schema_invalid", "accepted is the JSON Schema of an object")
    return value


Text: TypeAlias = Annotated[str, pydantic.Field(strict=True, min_length=1)]
ToolName: TypeAlias = Annotated[str, pydantic.Field(pattern=TOOL_NAME)]
ObjectSchema: TypeAlias = Annotated[dict[str, object], pydantic.AfterValidator(_a_schema)]
TemplateText: TypeAlias = Annotated[Template, compiled(Template.parse)]
HeaderText: TypeAlias = Annotated[Template, Compiled(_header)]
UrlText: TypeAlias = Annotated[UrlTemplate, compiled(UrlTemplate.parse)]
PathText: TypeAlias = Annotated[json_paths.JsonPath, compiled(json_paths.JsonPath.parse)]
ConditionText: TypeAlias = Annotated[expressions.Condition, Compiled(lambda value, info: _condition(value))]
Body: TypeAlias = Annotated[JsonTemplate, Compiled(lambda value, info: _json_template(value))]
Params: TypeAlias = Annotated[JsonTemplate, Compiled(lambda value, info: _params(value))]
Answer: TypeAlias = Annotated[JsonTemplate, Compiled(lambda value, info: _json_template(value, answer=True))]
_StepCondition: TypeAlias = Annotated[expressions.Condition, Compiled(_step_condition)]


class Document(pydantic.BaseModel):
    """A part of a config, JSON: fields that it does not know are refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def names_a_key(variable: str) -> str:
    """For a field that names the variable of the engine's key, which may be unset."""
    try:
        header_key(os.environ.get(variable))
    except ValueError as error:
        raise PydanticCustomError(
            "env_key", "{variable}: {why}", {"variable": variable, "why": str(error)}
        ) from error
    return variable


def version_choice(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    """A fault unless there is a version, or a flow and a tag of it."""
    version, flow_id, tag = (fields.get(name) for name in ("version", "flow_id", "tag"))
    by_tag = flow_id is not None and tag is not None
    if (version is None) != by_tag or (flow_id is None) != (tag is None):
        yield PydanticCustomError("version_choice", "accepted is either `version`, or `flow_id` and `tag`")


def _body_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    if fields.get("method", "GET") == "GET" and fields.get("body") is not None:
        yield PydanticCustomError("get_with_body", "accepted with GET are `params`, not `body`")


class RequestFields(Document):
    """What every request may say beside its address. `params` are an object; `timeout_s` covers all of the
    exchange, in seconds."""

    description: str | None = None
    method: Method = "GET"
    params: Params | None = None
    headers: dict[str, HeaderText] = {}
    body: Body | None = None
    timeout_s: float = pydantic.Field(
        default=DEFAULT_TIMEOUT_S, gt=0, le=MOST_TIMEOUT_S, allow_inf_nan=False, strict=True
    )

    _headers_have_names = pydantic.field_validator("headers", mode="wrap")(reading_beside(_header_faults))
    _get_has_no_body = pydantic.model_validator(mode="wrap")(reading_beside(_body_faults))


class HttpRequest(RequestFields):
    """One HTTP request; without a reply within `timeout_s` seconds it fails."""

    url: UrlText


class LifecycleCall(HttpRequest):
    """A request that a point in the call's life makes, where `condition` holds or there is none. One that
    fails is logged, and ends nothing."""

    condition: ConditionText | None = None
    store_in_ctx: dict[str, PathText] = {}


def _step_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    if fields.get("url") is not None:
        return
    if fields.get("extract") or fields.keys() & _ONLY_WITH_URL:
        yield PydanticCustomError("fetch_without_url", "a step that fetches or extracts needs a `url`")
    elif fields.get("condition") is None and fields.get("fail_if") is None:
        yield PydanticCustomError("empty_step", "accepted is a step with `url` or with `condition`")


def _extract_faults(extract: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    if taken := sorted(scope.NAMESPACES & extract.keys()):
        yield PydanticCustomError(
            "extract_name_taken",
            "{taken} stand for something else in conditions; accepted are names beside {names}",
            {"taken": listed(taken), "names": listed(sorted(scope.NAMESPACES))},
        )


class PreStep(RequestFields):
    """One step before a tool's own request: a fetch, a check, or both in this order.

    `extract` goes into `pre`. A `fail_if` or a `condition` that holds fails the step, and the tool answers
    `fail_return`. Both know the names of `extract` as they are; `$` is the reply of the fetch.
    """

    url: UrlText | None = None
    extract: dict[str, PathText] = {}
    fail_if: _StepCondition | None = None
    condition: _StepCondition | None = None
    fail_return: Answer | None = None

    _names_are_free = pydantic.field_validator("extract", mode="wrap")(reading_beside(_extract_faults))
    _does_something = pydantic.model_validator(mode="wrap")(reading_beside(_step_faults))

    @property
    def request(self) -> HttpRequest | None:
        """The fetch, with its URL; None for a bare check."""
        if self.url is None:
            return None
        fields = {name: getattr(self, name) for name in RequestFields.model_fields}
        return HttpRequest.model_construct(url=self.url, **fields)


class ToolReturn(Document):
    """The description for the model."""

    answer: Answer = pydantic.Field(alias="return")


def _builder_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    if fields.get("body_builder") is None:
        return
    if fields.get("body") is not None:
        yield PydanticCustomError("two_bodies", "accepted is `body` or `body_builder`, not both")
    elif fields.get("method", "GET") == "GET":
        yield PydanticCustomError("get_with_body", "accepted with GET are `params`, not `body_builder`")


class HttpTool(HttpRequest):
    """A tool that is one request, with steps before it."""

    type: Literal["http"]
    body_builder: str | None = None
    pre_steps: tuple[PreStep, ...] = ()
    store_in_ctx: dict[str, PathText] = {}
    on_success_flags: tuple[str, ...] = ()
    on_success: ToolReturn | None = None
    on_error: ToolReturn | None = None

    _one_body = pydantic.model_validator(mode="wrap")(reading_beside(_builder_faults))


def _target_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    action, has_target = fields.get("action"), fields.get("target") is not None
    if (action == "transfer" and not has_target) or (action == "hangup" and has_target):
        yield PydanticCustomError(
            "transfer_target", "accepted is `target` with the action `transfer`, and only with it"
        )


class BuiltinTool(Document):
    """Something that is done to the call itself. `target` is a phone number or SIP address; None for a tool
    that needs none."""

    type: Literal["builtin"]
    action: Literal["hangup", "transfer"]
    description: str | None = None
    target: TemplateText | None = None
    on_success_flags: tuple[str, ...] = ()

    _target_belongs_to_transfer = pydantic.model_validator(mode="wrap")(reading_beside(_target_faults))


def _tool(value: object, info: pydantic.ValidationInfo) -> HttpTool | BuiltinTool:
    """Chosen by `type` here, as a union would put its own name into the place of an error."""
    kind = cast("dict[object, object]", value).get("type") if isinstance(value, dict) else None
    match kind:
        case "http":
            return HttpTool.model_validate(value, context=info.context)
        case "builtin":
            return BuiltinTool.model_validate(value, context=info.context)
        case _:
            raise PydanticCustomError("tool_type", "accepted is a tool of `type` 'http' or 'builtin'")


ToolConfig: TypeAlias = Annotated[HttpTool | BuiltinTool, Compiled(_tool)]


def check_builders(raw: JsonValue, known: Collection[str]) -> list[Finding]:
    """A finding, with a JSON Pointer, for every tool of a config whose body builder is unknown."""
    tools = raw.get("tools") if isinstance(raw, dict) else None
    named = {
        name: tool.get("body_builder")
        for name, tool in (tools if isinstance(tools, dict) else {}).items()
        if isinstance(tool, dict) and tool.get("type") == "http"
    }
    return [
        Finding(
            pointer("tools", name, "body_builder"),
            "body_builder_unknown",
            f"{builder!r} is no body builder; accepted are {listed(sorted(known))}",
        )
        for name, builder in named.items()
        if isinstance(builder, str) and builder not in known
    ]


def base_url_findings(raw: JsonValue) -> list[Finding]:
    """A finding, with a JSON Pointer, where a config's templates use `base_url` and it has none."""
    if isinstance(raw, dict) and raw.get("base_url") is None and _uses_base_url(raw):
        return [Finding("/base_url", "missing_property", "is required, as templates use {{base_url}}")]
    return []


def _uses_base_url(value: JsonValue) -> bool:
    if isinstance(value, str):
        return _BASE_URL_USED.search(value) is not None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_uses_base_url, inner))

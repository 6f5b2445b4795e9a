"""A row of `ai_agents`: an agent as people write it (C1), read into a frozen model.

A field that is left out, or null, inherits from the base; an empty list or text does not. `name`, `enabled`
and `base_agent` are the row's own always.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, cast

import pydantic
from pydantic_core import PydanticCustomError

from adapters.models.providers import model_names
from channels.chat.settings import TOOL_ENV
from channels.http_tools.documents import HttpTool, ObjectSchema, ToolName, UrlText, environment_names
from channels.mail.loading import load_config
from flow_engine.documents.findings import findings_of
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.testing.yaml_text import read_yaml
from flow_engine.values import JsonValue, ValueRejected, check_json

ORCHESTRATOR: Final = "orchestrator"
SMALLTALK: Final = "smalltalk_agent"

OWN_FIELDS: Final = ("name", "enabled", "base_agent")
"""Never inherited."""

MOST_LIST: Final = 500
MOST_LANGUAGES: Final = 20
MOST_FINDINGS: Final = 200
RESERVED_TOOLS: Final = frozenset({"ask_user", "refuse", "change_task", "end_call"})

_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")
_FIXED_HOST: Final = re.compile(r"https?://[^\s/?#{}$@\\]+([/?#].*)?", re.DOTALL)

ApprovalLevel = Literal["allow", "prompt", "forbid"]


def _a_language(text: str) -> str:
    if not _LANGUAGE.fullmatch(text):
        raise PydanticCustomError("language", "accepted is a language such as 'it' or 'it-IT'")
    return text


def _fixed_host(value: object) -> object:
    if isinstance(value, str) and not _FIXED_HOST.fullmatch(value):
        raise PydanticCustomError("host_not_fixed", "accepted is an address that begins with http(s)://host")
    return value


Text: TypeAlias = Annotated[str, pydantic.Field(max_length=20_000)]
Line: TypeAlias = Annotated[str, pydantic.Field(max_length=2_000)]
Lines: TypeAlias = Annotated[tuple[Line, ...], pydantic.Field(max_length=MOST_LIST, strict=False)]
Name: TypeAlias = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class RowHttpTool(HttpTool):
    """A declarative HTTP tool of a row. `parameters` is the JSON Schema of its arguments, an object."""

    type: Literal["http"] = "http"
    url: Annotated[UrlText, pydantic.BeforeValidator(_fixed_host)]
    parameters: ObjectSchema = pydantic.Field(default_factory=lambda: {"type": "object", "properties": {}})
    approval: ApprovalLevel = "allow"

    @pydantic.field_validator("headers", "pre_steps", mode="before")
    @classmethod
    def _sends_what_the_operator_named(cls, value: object) -> object:
        """Rows are a tenant's, the environment is the operator's: of what he has not named it is not even
        told whether it is there."""
        if not set(environment_names(str(value))) <= set(re.split(r"[,\s]+", os.environ.get(TOOL_ENV, ""))):
            message = f"accepted as ${{env:…}} are the variables that {TOOL_ENV} names"
            raise PydanticCustomError("env_not_allowed", "{message}", {"message": message})
        return value

    @pydantic.field_validator("body_builder")
    @classmethod
    def _no_builder(cls, name: str | None) -> str | None:
        if name is not None:
            raise PydanticCustomError("body_builder_unknown", "accepted in a row is `body`")
        return name


class RowFlow(pydantic.BaseModel):
    """The flow of the engine that talks in the agent's place (C15)."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    flow_id: Annotated[str, pydantic.Field(min_length=1, max_length=512)]
    tag: Annotated[str, pydantic.Field(min_length=1, max_length=512)] = "latest"


class AgentRow(pydantic.BaseModel):
    """Null inherits. `num_ctx` is a context length in tokens; `model` as in `FLOW_ENGINE_LLM_MODEL`."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    name: Name
    enabled: bool = True
    base_agent: Name | None = None
    role: Text | None = None
    task: Text | None = None
    constraints: Lines | None = None
    rules: Lines | None = None
    output_schema: Text | None = None
    state_strategy: Text | None = None
    tools: (
        Annotated[
            tuple[Annotated[str, pydantic.Field(min_length=1, max_length=130)], ...],
            pydantic.Field(strict=False),
        ]
        | None
    ) = None
    model: Annotated[str, pydantic.AfterValidator(model_names)] | None = None
    temperature: Annotated[float, pydantic.Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, pydantic.Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    num_ctx: Annotated[int, pydantic.Field(ge=1, le=10_000_000)] | None = None
    description: Text | None = None
    examples: Lines | None = None
    languages: (
        Annotated[
            tuple[Annotated[str, pydantic.AfterValidator(_a_language)], ...],
            pydantic.Field(max_length=MOST_LANGUAGES, strict=False),
        ]
        | None
    ) = None
    http_tools: dict[ToolName, RowHttpTool] | None = None
    flow: RowFlow | None = None


FIELDS: Final = tuple(AgentRow.model_fields)
INHERITED: Final = tuple(name for name in FIELDS if name not in OWN_FIELDS)

Fields: TypeAlias = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it is stored, JSON: `fields` has every field of `FIELDS`, null where nothing is said.
    `revision` counts from 1."""

    revision: int
    fields: Fields

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def enabled(self) -> bool:
        return self.fields["enabled"] is True

    @property
    def base(self) -> str | None:
        return cast("str | None", self.fields["base_agent"])


def whole(raw: Fields) -> Fields:
    """Every field in the order of the table, the missing ones null; `enabled` is true where it is missing."""
    return {name: raw.get(name, True if name == "enabled" else None) for name in FIELDS}


def row_findings(raw: JsonValue) -> Iterator[Finding]:
    """Everything that is wrong with a row for itself, without the table, at JSON Pointers into it; nothing
    for a sound row. Never raises for a JSON value of whatever shape."""
    if not isinstance(raw, dict):
        yield Finding("", "wrong_type", "accepted is an object, a row of ai_agents")
        return
    try:
        check_json(raw)
        AgentRow.model_validate(raw)
    except ValueRejected as rejected:
        yield Finding("", "value_rejected", rejected.message)
    except pydantic.ValidationError as error:
        yield from findings_of(error, AgentRow, raw, most=MOST_FINDINGS)
    declared = raw.get("http_tools")
    if isinstance(declared, dict):
        for name in sorted(RESERVED_TOOLS & declared.keys()):
            message = f"{name!r} is a function of every agent; accepted is another name"
            yield Finding(pointer("http_tools", name), "tool_name_reserved", message)


def merge_patch(fields: Fields, patch: Fields) -> Fields:
    """RFC 7396, except that a null at the top is stored: it makes the field inherit."""
    return {**fields, **{name: _patched(fields.get(name), value) for name, value in patch.items()}}


def _patched(value: JsonValue, patch: JsonValue) -> JsonValue:
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, new in patch.items():
        if new is None:
            merged.pop(name, None)
        else:
            merged[name] = _patched(merged.get(name), new)
    return merged


def profile_rows(path: Path) -> list[Fields]:
    """The profiles of a mail agent's config as rows: name, system prompt, model, temperature, flow, and those
    of its tools that the config declares. Tools of mail stay with the mail agent.

    Raises CorrectTheInput: `mail_config_refused` for a config that is none, `agent_invalid` with a finding
    for everything of a profile that no row can be.
    """
    loaded = load_config(path)
    read, _ = read_yaml(path.read_bytes())
    tools = cast("Mapping[str, dict[str, JsonValue]]", cast("Fields", read.value).get("tools") or {})
    rows: list[Fields] = []
    found: list[Finding] = []
    for name, profile in loaded.config.agent.profiles.items():
        declared: dict[str, JsonValue] = {
            tool: {**tools[tool], "approval": profile.approval.get(tool, "allow")}
            for tool in profile.tools
            if tool in tools
        }
        flow: JsonValue = None
        if profile.flow is not None and profile.flow.flow_id is not None:
            flow = {"flow_id": profile.flow.flow_id, "tag": profile.flow.tag or "latest"}
        row: dict[str, JsonValue] = {
            "name": name,
            "task": loaded.prompts[name],
            "model": profile.model,
            "temperature": profile.temperature,
            "tools": [],
            "http_tools": declared or None,
            "flow": flow,
        }
        rows.append(row)
        own = pointer("agent", "profiles", name)
        found += [Finding(own + each.pointer, each.code, each.message) for each in row_findings(row)]
    if found:
        raise CorrectTheInput("agent_invalid", f"{path}: profiles that no row can be", found)
    return rows

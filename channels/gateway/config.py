"""The gateway's file, TOML: which servers answer for which models, and what the assistant may work in.

    [[backends]]
    name = "local"            # unique
    kind = "ollama"           # ollama | openai | vllm | gemini
    url = "http://127.0.0.1:11434"
    models = ["qwen3:8b"]
    aliases = { small = "qwen3:8b" }

    [[workspaces]]
    name = "site"
    path = "/srv/site"
    tenant = "acme"           # unset: of every tenant with a key of the scope `workspace`

    [assistant]
    model = "small"

    [[budgets]]
    key = "bridge"            # the `name` of a key in the keys file
    requests_per_minute = 60

Relative paths count from the file's folder.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal, cast
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from flow_engine.documents.findings import reading_beside, told_of_file
from flow_engine.errors import CallTheOperator

Kind = Literal["ollama", "openai", "vllm", "gemini"]
CacheMode = Literal["off", "strict", "final"]
_HOSTED: Final = ("openai", "vllm", "gemini")
_OLLAMA: Final = ("num_ctx", "keep_alive")
_CLOSED = ConfigDict(frozen=True, extra="forbid")
_ADDRESS = re.compile(
    r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?(?:/[^\x00-\x20?#\x7f]*)?", re.ASCII
)
ADDRESSES = "accepted is http:// or https://, a host, and where there are any a port and a path"
Name = Annotated[str, Field(min_length=1, max_length=200)]


def is_address(text: str) -> bool:
    """Whether a server can be asked there."""
    match = _ADDRESS.fullmatch(text)
    with suppress(ValueError):  # brackets that hold no IPv6 address
        return bool(match and text.isascii() and int(match[1] or 0) <= 65_535 and urlsplit(text))
    return False


def _kind_faults(fields: Mapping[str, object]) -> Iterator[str]:
    if fields.get("kind") in _HOSTED and any(fields.get(name) is not None for name in _OLLAMA):
        yield "num_ctx and keep_alive are for kind 'ollama'"
    if not (fields.get("models") or fields.get("aliases")):
        yield "a backend names at least one model, in 'models' or 'aliases'"


class Backend(BaseModel):
    """`url` of an `ollama` is its root, of the other kinds it ends in `/v1`. `weight` 0 makes a backend one
    to fall back on only. `timeout_s` bounds, in seconds, the wait for an answer and each silence within it.
    `num_ctx` (tokens) and `keep_alive` are Ollama's."""

    model_config = _CLOSED

    name: Name
    kind: Kind
    url: str
    key_env: str | None = None
    models: tuple[Name, ...] = ()
    aliases: Mapping[Name, Name] = Field(default_factory=dict[str, str])
    weight: Annotated[float, Field(ge=0)] = 1
    fallbacks: tuple[str, ...] = ()
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60
    num_ctx: Annotated[int, Field(gt=0)] | None = None
    keep_alive: str | int | None = None

    @field_validator("url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        if not is_address(value):
            raise ValueError(ADDRESSES)
        return value.rstrip("/")

    _settings_of_its_kind = model_validator(mode="wrap")(reading_beside(_kind_faults))

    def resolved(self, public: str) -> str | None:
        """The server's own name of a model that clients know as `public`; None when it is not here."""
        return self.aliases.get(public) or (public if public in self.models else None)


class Workspace(BaseModel):
    """A folder that clients of the assistant may name: those of its tenant, where it has one."""

    model_config = _CLOSED

    name: Name
    path: Path
    tenant: Name | None = None


class Assistant(BaseModel):
    """`model` is asked where a request names none."""

    model_config = _CLOSED

    model: Name | None = None


class Budget(BaseModel):
    """Bounds of one key, by its name and, where two tenants have a key of that name, its tenant. A field
    that is left out does not bound. Minutes and days are of UTC; tokens are those of questions and
    answers."""

    model_config = _CLOSED

    key: Name
    tenant: Name | None = None
    requests_per_minute: Annotated[int, Field(ge=0)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=0)] | None = None
    usd_per_day: Annotated[float, Field(ge=0)] | None = None


def _names_that_clash(fields: Mapping[str, object]) -> Iterator[str]:
    backends, workspaces = (_named(fields.get(kind)) for kind in ("backends", "workspaces"))
    names = [name for name, _ in backends]
    rows = fields.get("backends")
    all_named = isinstance(rows, list) and len(cast("list[object]", rows)) == len(backends)
    problems = [f"two backends are named {name!r}" for name in _twice(names)]
    problems += [f"two workspaces are named {name!r}" for name in _twice(name for name, _ in workspaces)]
    for own, backend in backends:
        listed = backend.get("fallbacks")
        for name in cast("list[object]", listed) if isinstance(listed, list) else ():
            if isinstance(name, str) and (name == own or (all_named and name not in names)):
                problems.append(f"{own!r} cannot fall back on {name!r}")
    if problems:
        yield f"{'; '.join(problems)}; backends are: {', '.join(names)}"


class GatewayFile(BaseModel):
    """The whole file, frozen: unknown fields, names twice and fallbacks that are none are refused."""

    model_config = _CLOSED

    backends: tuple[Backend, ...]
    workspaces: tuple[Workspace, ...] = ()
    assistant: Assistant = Assistant()
    budgets: tuple[Budget, ...] = ()

    @field_validator("backends")
    @classmethod
    def _one_at_least(cls, value: tuple[Backend, ...]) -> tuple[Backend, ...]:
        if not value:  # a bound of the field would be told of backends that are wrong, too
            raise ValueError("accepted is at least one backend")
        return value

    _names_that_fit = model_validator(mode="wrap")(reading_beside(_names_that_clash))


def _named(rows: object) -> list[tuple[str, Mapping[str, object]]]:
    """The rows that have a name, with it."""
    given = cast("list[object]", rows) if isinstance(rows, list) else []
    objects = [cast("dict[str, object]", row) for row in given if isinstance(row, dict)]
    return [(name, row) for row in objects if isinstance(name := row.get("name"), str)]


def _twice(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]


def read_gateway_file(path: Path) -> GatewayFile:
    """Raises CallTheOperator `gateway_config_invalid`: no such file, no TOML, or every field that is wrong
    with its JSON pointer."""
    raw: dict[str, object] = {}
    try:
        raw = tomllib.loads(path.read_bytes().decode("utf-8"))
        file = GatewayFile.model_validate(raw)
    except OSError as error:
        raise _invalid(path, error.strerror or "cannot be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(path, str(error)) from None
    except ValidationError as error:
        raise _invalid(path, told_of_file(error, GatewayFile, raw)) from None
    folder = path.resolve().parent
    workspaces = [
        each.model_copy(update={"path": folder / each.path.expanduser()}) for each in file.workspaces
    ]
    return file.model_copy(update={"workspaces": tuple(workspaces)})


def _invalid(path: Path, detail: str) -> CallTheOperator:
    return CallTheOperator("gateway_config_invalid", f"{path}: {detail}")


class GatewaySettings(BaseSettings):
    """Settings of `flow-engine gateway`, by the environment with the prefix `FLOW_ENGINE_`. Times are in
    seconds."""

    model_config = SettingsConfigDict(
        env_prefix="FLOW_ENGINE_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    gateway_config: Path | None = Field(default=None, description="The gateway's file, TOML")
    gateway_cache: CacheMode = Field(
        default="strict",
        description="Which answers are kept: none, those at temperature 0 without tools, or also those with "
        "tools that call none",
    )
    gateway_cache_ttl_s: float = Field(default=3600, gt=0, description="Seconds that an answer is kept")
    gateway_heartbeat_s: float = Field(
        default=15, gt=0, description="Seconds of silence after which a stream gets a comment"
    )
    gateway_usage_days: int = Field(default=90, ge=1, description="Days that usage records are kept")
    gateway_breaker_failures: int = Field(
        default=20, ge=1, description="Failures in a row after which a backend is left alone for 5 seconds"
    )

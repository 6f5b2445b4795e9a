"""Every setting of the service, read from the environment with the prefix `FLOW_ENGINE_`. A variable that is
empty is as if it were not set."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.redis_address import checked_redis_url
from flow_engine.documents import DocumentLimits
from flow_engine.documents.findings import problems_of
from flow_engine.errors import CallTheOperator, CorrectTheInput, FlowEngineError, RetryLater
from service import late

PREFIX = "FLOW_ENGINE_"
_MONGO = re.compile(r"mongodb(\+srv)?://[^/?#\s]")
_WEB = re.compile(r"https?://[^/?#\s]")
_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_BASE_URL = re.compile(_ORIGIN.pattern + r"(?:/[^?#\s]*)?")
_Read = TypeVar("_Read", bound=BaseSettings)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    redis_url: str | None = Field(
        default=None, description="Redis for conversations, redis:// or rediss://; unset: inside this process"
    )
    redis_cluster: bool = Field(default=False, description="The URL names a node of a Redis Cluster")
    redis_durability: Literal["none", "aof", "always"] = Field(
        default="aof", description="What Redis must do to keep writes, else the service refuses to start"
    )
    redis_unsafe: bool = Field(
        default=False, description="Start all the same on a Redis that evicts or is less durable"
    )
    redis_wait_replicas: int = Field(
        default=0,
        ge=0,
        le=10,
        description="Replicas of Redis that must have a write before it is acknowledged, within a second",
    )
    mongo_url: str | None = Field(
        default=None,
        description="MongoDB for flows, mongodb://.../database, else flow_engine; unset: SQLite in the data "
        "directory",
    )
    data_dir: Path = Field(
        default=Path(".data"), description="Where the SQLite database of the embedded default is"
    )
    samples: bool = Field(
        default=True, description="Load the sample flows at the start of the embedded default"
    )
    api_keys_file: Path | None = Field(
        default=None, description="JSON file of API keys; unset: no keys, loopback only"
    )
    public_url: str | None = Field(
        default=None,
        description="Where agents and tools reach this service; unset: the address it listens on, and with "
        "0.0.0.0 or :: the Host of each request",
    )
    cors_origins: str = Field(
        default="",
        description="Origins, comma-separated, whose pages may call this service, as https://editor.example",
    )
    held_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Bytes of stored conversations that a process keeps decoded, which take twice as many, "
        "and as many of replies; 0: none of either",
    )
    memory_format: Literal["markdown", "toon"] = Field(
        default="markdown", description="How prompts show the memory"
    )
    outbound_allow: str = Field(
        default="",
        description="Hosts, host:port or CIDR, comma-separated, that outbound calls may reach",
    )
    llm_model: str | None = Field(
        default=None,
        description="Language model, provider:model; after commas those to fall back on; unset: none",
    )
    llm_timeout_s: float = Field(default=10.0, gt=0, le=600, description="Seconds one model call may take")
    llm_at_once: int = Field(default=16, ge=1, description="Model calls at once, a process")
    llm_calls_per_minute: int = Field(
        default=600, ge=1, description="Model calls a minute, over all processes on one Redis"
    )
    max_document_bytes: int = Field(default=1_000_000, ge=1_000, description="Largest flow version in bytes")
    max_document_depth: int = Field(default=100, ge=10, description="Deepest nesting of a flow version")
    max_tasks: int = Field(default=300, ge=1, description="Most tasks of a flow version")
    rules_extraction: bool = Field(
        default=True,
        description="Read phones, e-mail, dates, numbers, yes and no, and choices by rules, before a model",
    )
    worker_in_serve: bool | None = Field(
        default=None,
        description="Whether `serve` does the background work too; unset: only without FLOW_ENGINE_REDIS_URL",
    )
    jobs_at_once: int = Field(default=16, ge=1, le=1_000, description="Background jobs at once, a process")
    job_lease_s: float = Field(
        default=15.0, ge=0.3, le=600, description="Seconds after which a killed worker's job is taken over"
    )
    job_timeout_s: float = Field(default=60.0, gt=0, description="Seconds one attempt at a job may take")
    job_attempts: int = Field(default=10, ge=1, description="Attempts at a job before it is given up")
    events_kept: int = Field(
        default=100_000,
        ge=1_000,
        description="About how many events the reporting stream keeps, read or not",
    )
    cti_stream: str | None = Field(
        default=None,
        min_length=1,
        description="Redis stream into which a core CTI writes contact ends and utterances; unset: none",
    )
    journal_days: int = Field(
        default=30,
        ge=1,
        le=3_650,
        description="Days that the flow database keeps the journals of conversations that are closed",
    )
    streams_at_once: int = Field(
        default=64, ge=1, le=400, description="Journals followed at once by `GET …/stream`, a process"
    )
    webhook_url: str | None = Field(
        default=None, description="Where every event is POSTed to, if the outbound policy allows it"
    )
    webhook_secret: SecretStr | None = Field(
        default=None, min_length=16, description="What events for the webhook are signed with"
    )
    traces: Literal["otlp", "console"] | None = Field(
        default=None,
        description="OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT, or to standard error; unset: none",
    )
    voice_directory: Path | None = Field(
        default=None,
        description="Directory of a voice manager on this machine, whose agents operators see; unset: voice "
        "in the data directory, and without API keys only",
    )
    worker_metrics_host: str = Field(
        default="127.0.0.1", description="Address on which `worker` serves its metrics"
    )
    worker_metrics_port: int | None = Field(
        default=None, ge=1, le=65_535, description="Port of the metrics of `worker`; unset: not served"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level logged"
    )

    @field_validator("redis_url")
    @classmethod
    def _a_redis_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        checked = checked_redis_url(value)
        late.redis_py.check_url(checked)
        return checked

    @field_validator("mongo_url")
    @classmethod
    def _a_mongo_url(cls, value: str | None) -> str | None:
        if value is not None and not _MONGO.match(value):
            raise ValueError("accepted is mongodb:// or mongodb+srv:// with a host")
        if value is not None:
            late.mongo_store.check_url(value)
        return value

    @field_validator("webhook_url")
    @classmethod
    def _a_web_address(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not _WEB.match(value):
            raise ValueError("accepted is http:// or https:// with a host")
        if value is not None and "outbound_allow" in info.data:
            allowed = late.outbound_policy.AllowList.parse(info.data["outbound_allow"])
            if refusal := allowed.visible_refusal(value):
                raise ValueError(f"it could never be called: {refusal}")
        return value

    @field_validator("outbound_allow")
    @classmethod
    def _an_allow_list(cls, value: str) -> str:
        if value:
            try:
                late.outbound_policy.AllowList.parse(value)
            except CorrectTheInput as wrong:
                raise ValueError("; ".join(each.message for each in wrong.findings)) from wrong
        return value

    @field_validator("llm_model")
    @classmethod
    def _models(cls, value: str | None) -> str | None:
        return None if value is None else late.model_providers.model_names(value)

    @field_validator("public_url")
    @classmethod
    def _a_base_url(cls, value: str | None) -> str | None:
        if value is not None and not _BASE_URL.fullmatch(value):
            raise ValueError("accepted is http:// or https://, a host, and a path or none")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: str) -> str:
        for origin in filter(None, (each.strip() for each in value.split(","))):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; accepted are such as https://editor.example:8443")
        return value

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(filter(None, (each.strip() for each in self.cors_origins.split(","))))

    @property
    def works_in_serve(self) -> bool:
        return self.redis_url is None if self.worker_in_serve is None else self.worker_in_serve

    @property
    def document_limits(self) -> DocumentLimits:
        return DocumentLimits(
            max_bytes=self.max_document_bytes,
            max_depth=self.max_document_depth,
            max_tasks=self.max_tasks,
        )


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^,\s]*")
"""Any may carry a password, or a token in its query. In a list they are parted by commas."""
_HIDDEN = "***"


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return f"{PREFIX}{name.upper()}"


def shown_value(name: str, value: object) -> str:
    """A setting as it may be printed: of each URL in it no user, no password and no value of its query. What
    should be one and is not is not shown, for its parts cannot be told from one another."""
    if not isinstance(value, str):
        return str(value)
    return _shown_url(value) if name.endswith("_url") else _URL.sub(lambda found: _shown_url(found[0]), value)


def _shown_url(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError:  # a bracket that is not closed, say
        return f"{_HIDDEN} (no URL)"
    if not parts.netloc and not (parts.scheme == "unix" and parts.path):
        return f"{_HIDDEN} (no URL)"
    at, host = parts.netloc.rpartition("@")[1:]
    options = (each.partition("=") for each in parts.query.split("&") if each)
    query = "&".join(f"{name if equals else ''}{equals}{_HIDDEN}" for name, equals, _ in options)
    rest = f"{query and '?'}{query}{parts.fragment and f'#{_HIDDEN}'}"
    return f"{parts.scheme}://{at and _HIDDEN}{at}{host}{parts.path}{rest}"


def read_settings(kind: type[_Read], variable: Callable[[str], str] = variable_of) -> _Read:
    """Settings of that kind from the environment. Raises CallTheOperator `settings_invalid` that names every
    variable that is wrong."""
    try:
        return kind()
    except ValidationError as error:
        wrong = [f"{variable(str(each.place[0]))}: {each.message}" for each in problems_of(error)]
        raise CallTheOperator("settings_invalid", "; ".join(wrong)) from None


_WHERE = {
    "memory_unavailable": "; it is looked for at FLOW_ENGINE_REDIS_URL",
    "memory_refused": "; it is looked for at FLOW_ENGINE_REDIS_URL",
    "api_keys_unreadable": "; it is FLOW_ENGINE_API_KEYS_FILE",
    "flow_store_misconfigured": "; it is FLOW_ENGINE_MONGO_URL",
    "flow_store_unavailable": "; it is looked for at FLOW_ENGINE_MONGO_URL, or in FLOW_ENGINE_DATA_DIR",
}
"""Which setting says where a store, or a file, is, by the code of the refusal that it causes."""


_OTHER_SCHEME = {
    "rediss": (
        "Timeout connecting to server",
        "; where that Redis speaks no TLS, its URL begins with redis://",
    ),
    "redis": (
        "Connection reset by peer",
        "; where that Redis speaks TLS alone, its URL begins with rediss://",
    ),
}
"""What the driver says where one side speaks TLS and the other does not, and what that may mean, by the
scheme of FLOW_ENGINE_REDIS_URL."""


_COMMANDS = {"GET /v1/agent-runs": "flow-engine mail runs"}
"""What on the command line stands for what a refusal names of REST."""


def refusal_line(refused: FlowEngineError) -> str:
    """What a command that cannot be done says on standard error; of a store that is away or refuses also,
    in a line below, its driver's reason, such as a refused connection or a name that nobody knows."""
    detail = refused.detail
    for path, command in _COMMANDS.items():
        detail = detail.replace(path, command)
    line = f"flow-engine: {detail}{_WHERE.get(refused.code, '')}"
    why = refused.reason if isinstance(refused, RetryLater) or refused.code in _WHERE else ""
    scheme = os.environ.get(variable_of("redis_url"), "").partition(":")[0]
    said, meaning = _OTHER_SCHEME.get(scheme, ("", ""))
    hint = meaning if refused.code == "memory_unavailable" and said in why else ""
    return f"{line}\nflow-engine: {why}{hint}" if why else line

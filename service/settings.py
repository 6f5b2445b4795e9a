"""Every setting of the service, read from the environment with the prefix `FLOW_ENGINE_`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from flow_engine.documents import DocumentLimits


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="FLOW_ENGINE_", frozen=True, extra="ignore")

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
    mongo_url: str | None = Field(
        default=None,
        description="MongoDB for flows, mongodb://.../database; unset: SQLite in the data directory",
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
        description="Where agents and tools reach this service; unset: the address it listens on",
    )
    memory_format: Literal["markdown", "toon"] = Field(
        default="markdown", description="How prompts show the memory"
    )
    outbound_allow: str = Field(
        default="",
        description="Hosts, host:port or CIDR, comma-separated, that outbound calls may reach",
    )
    max_document_bytes: int = Field(default=1_000_000, ge=1_000, description="Largest flow version in bytes")
    max_document_depth: int = Field(default=100, ge=10, description="Deepest nesting of a flow version")
    max_tasks: int = Field(default=300, ge=1, description="Most tasks of a flow version")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level logged"
    )

    @property
    def document_limits(self) -> DocumentLimits:
        return DocumentLimits(
            max_bytes=self.max_document_bytes,
            max_depth=self.max_document_depth,
            max_tasks=self.max_tasks,
        )


SECRET = frozenset(("redis_url", "mongo_url"))
"""Settings that may carry a password: shown without it."""

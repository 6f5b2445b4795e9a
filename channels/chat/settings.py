"""Settings of `flow-engine chat`, read from the environment with the prefix `FLOW_ENGINE_`.

Stores, keys, model and the way out are set as for `flow-engine serve`.
"""

from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from flow_engine.ports.outbound import header_key

TOOL_ENV: Final = "FLOW_ENGINE_CHAT_TOOL_ENV"
"""Of `chat_tool_env`: rows are read without the settings."""


class ChatSettings(BaseSettings):
    """Scores and confidences are from 0 to 1, times in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="FLOW_ENGINE_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    chat_min_score: float = Field(
        default=0.2, ge=0, le=1, description="Least score of the router for an agent to be accepted"
    )
    chat_min_confidence: float = Field(
        default=0.6,
        ge=0,
        le=1,
        description="Least confidence of the orchestrator for an agent to be accepted",
    )
    chat_clarify_confidence: float = Field(
        default=0.35, ge=0, le=1, description="Least confidence for a question; below it a message is refused"
    )
    chat_margin: float = Field(
        default=0.05, ge=0, le=1, description="Without a model: scores this near to each other are a question"
    )
    chat_candidates: int = Field(default=5, ge=1, le=50, description="Agents that the router proposes")
    chat_idle_s: float = Field(
        default=1800, gt=0, description="Seconds without a message after which a session is ended"
    )
    chat_confirm_s: float = Field(
        default=60, gt=0, description="Seconds that a tool waits for the user's confirmation"
    )
    chat_keep_days: int = Field(
        default=30,
        ge=0,
        le=36_500,
        description="Days that decisions, runs of agents and calls of models are kept",
    )
    chat_tool_rules: str = Field(
        default="",
        description="Approval by the operator, decision:tool after commas, such as prompt:pay_*,forbid:wipe",
    )
    chat_tool_env: str = Field(
        default="",
        description="Variables of the environment that HTTP tools of rows may send, after commas; designers "
        "may send them anywhere",
    )
    chat_mcp_servers: str = Field(
        default="", description="MCP servers whose tools rows may list, name=url after commas"
    )
    chat_mail_config: Path | None = Field(
        default=None, description="A mail agent's config, whose profiles become rows where they are missing"
    )
    tool_modules: str = Field(default="", description="Python modules with tools, importable, after commas")
    engine_url: str = Field(default="http://127.0.0.1:8080", description="The engine that runs flows")
    api_key: SecretStr | None = Field(
        default=None, description="The key for that engine; unset: none is sent"
    )

    @field_validator("api_key")
    @classmethod
    def _is_a_key(cls, given: SecretStr | None) -> SecretStr | None:
        key = None if given is None else header_key(given.get_secret_value())
        return None if key is None else SecretStr(key)

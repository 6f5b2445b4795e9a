"""The assistant inside the gateway: whose workspaces it opens, and how it asks the gateway's own models."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request

from adapters.models.factory import ConnectedModel, build_model
from api.auth import Principal
from channels.gateway.app import Doorkeeper, Scope
from channels.gateway.app import Principal as Caller
from channels.gateway.config import GatewayFile, GatewaySettings
from channels.workspace.assistant import Workspace, WorkspaceSettings
from channels.workspace.index import GatewayEmbedder
from channels.workspace.routes import AssistantRoutes
from channels.workspace.rules import read_rules
from flow_engine.ports.clock import SystemClock
from service.settings import Settings, read_settings

MODEL_WITHIN_S: Final = 180.0
"""Seconds of silence after which a model of the assistant has failed."""


@dataclass(frozen=True, slots=True)
class Base:
    """An OpenAI-compatible server; `url` ends in `/v1`. `model` is what its operator has set."""

    url: str
    key: str | None = field(repr=False)
    model: str | None = None


def assistant_model(base: Base, model: str) -> ConnectedModel:
    """A model behind an OpenAI-compatible base. Raises CallTheOperator for a name that cannot be asked."""
    settings = read_settings(Settings).model_copy(
        update={
            "llm_model": f"local:{model}",
            "llm_timeout_s": MODEL_WITHIN_S,
            "llm_calls_per_minute": 100_000,
        }
    )
    environ = {"OPENAI_BASE_URL": base.url, "OPENAI_API_KEY": base.key or "none"}
    return build_model(settings, SystemClock(), environ=environ, retries=1)


class OwnDoor:
    """Implements the gateway's `Doorkeeper`: lets the assistant of this process in, in the name of whoever it
    works for, and others by the door behind it. Its key is made anew at each start."""

    def __init__(self, door: Doorkeeper) -> None:
        self._door = door
        self._secret = secrets.token_urlsafe(32)
        self._callers: dict[str, Caller] = {}

    def key_for(self, caller: Caller) -> str:
        key = f"{self._secret}.{caller.tenant_id}.{caller.name}"
        self._callers[f"Bearer {key}"] = caller
        return key

    def admit(self, request: Request, scope: Scope) -> Caller:
        caller = self._callers.get(request.headers.get("authorization", ""))
        if caller is not None and scope == "gateway":
            return Principal(caller.tenant_id, frozenset({scope}), caller.name)
        return self._door.admit(request, scope)


def assistant_routes(file: GatewayFile, gateway: GatewaySettings, door: OwnDoor, url: str) -> AssistantRoutes:
    """`url` is where this gateway itself is reached, with `/v1`. Raises CallTheOperator `rules_invalid`."""
    settings = read_settings(WorkspaceSettings)
    rules = read_rules(settings.workspace_rules.expanduser())
    own = Principal("default", frozenset({"gateway"}), "index")

    def opener(path: Path) -> Callable[[], Workspace]:
        embedding = settings.workspace_embedding_model
        embedder = GatewayEmbedder(url, door.key_for(own), embedding) if embedding else None
        return lambda: Workspace(path, settings, rules, embedder)

    def model_for(name: str, caller: Caller) -> tuple[ConnectedModel, str | None]:
        return assistant_model(Base(url, door.key_for(caller)), name), None

    workspaces: Mapping[str, Callable[[], Workspace]] = {
        each.name: opener(each.path) for each in file.workspaces
    }
    return AssistantRoutes(workspaces, model_for, file.assistant.model, door, gateway.gateway_heartbeat_s)

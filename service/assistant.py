"""The assistant inside the gateway: whose workspaces it opens, and how it asks the gateway's own models."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from starlette.requests import Request

from adapters.models.factory import ConnectedModel, build_model
from api.auth import Principal
from channels.gateway import app, config
from channels.workspace import assistant, index, routes
from channels.workspace.rules import read_rules
from flow_engine.errors import CallTheOperator
from flow_engine.ports.clock import SystemClock
from service.settings import Settings, read_settings

MODEL_WITHIN_S = 180.0
"""Seconds of silence after which a model of the assistant has failed."""


@dataclass(frozen=True, slots=True)
class Base:
    """An OpenAI-compatible server; `url` ends in `/v1`. `model` is what its operator has set."""

    url: str
    key: str | None = field(repr=False)
    model: str | None = None


def assistant_model(base: Base, model: str) -> ConnectedModel:
    """One model behind an OpenAI-compatible base. Raises CallTheOperator for a name that cannot be asked."""
    if "," in model:  # would be a list to fall back on, of models that need not be the base's
        raise CallTheOperator("llm_not_configured", f"{model!r} names several models; accepted is one")
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

    def __init__(self, door: app.Doorkeeper) -> None:
        self._door = door
        self._secret = secrets.token_urlsafe(32)
        self._callers: dict[str, app.Principal] = {}

    def key_for(self, caller: app.Principal) -> str:
        whose = hashlib.sha256(orjson.dumps((caller.tenant_id, caller.name))).hexdigest()
        key = f"{self._secret}.{whose}"
        self._callers[f"Bearer {key}"] = caller
        return key

    def admit(self, request: Request, scopes: Sequence[app.Scope]) -> app.Principal:
        caller = self._callers.get(request.headers.get("authorization", ""))
        if caller is not None and "gateway" in scopes:
            return Principal(caller.tenant_id, frozenset({"gateway"}), caller.name)
        return self._door.admit(request, scopes)


def assistant_routes(
    file: config.GatewayFile, gateway: config.GatewaySettings, door: OwnDoor, url: str
) -> routes.AssistantRoutes:
    """`url` is where this gateway itself is reached, with `/v1`. Raises CallTheOperator `rules_invalid`."""
    settings = read_settings(assistant.WorkspaceSettings)
    rules = read_rules(settings.workspace_rules.expanduser())
    own = Principal("default", frozenset({"gateway"}), "index")

    def opener(path: Path) -> Callable[[], assistant.Workspace]:
        embedding = settings.workspace_embedding_model
        embedder = index.GatewayEmbedder(url, door.key_for(own), embedding) if embedding else None
        return lambda: assistant.Workspace(path, settings, rules, embedder)

    def model_for(name: str, caller: app.Principal) -> ConnectedModel:
        return assistant_model(Base(url, door.key_for(caller)), name)

    workspaces = {each.name: routes.Offered(opener(each.path), each.tenant) for each in file.workspaces}
    return routes.AssistantRoutes(
        workspaces, model_for, file.assistant.model, door, gateway.gateway_heartbeat_s
    )

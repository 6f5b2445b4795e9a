"""`flow-engine voice manage`: run a voice agent for each entry of a list, and look after them."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from flow_engine.errors import FlowEngineError

AGENT_COMMAND = shlex.join((sys.executable, "-m", "service.cli", "voice", "serve"))


@dataclass(frozen=True, slots=True)
class ManageOptions:
    """As they were given. `api_url` has no slash at its end, the commands are split into their words."""

    api_url: str
    templates: Path
    directory: Path
    first_port: int
    refresh_s: float
    health_s: float
    drain_s: float
    agent_command: tuple[str, ...]
    sip_bridge_command: tuple[str, ...]


def manage(
    *,
    api: Annotated[
        str, typer.Option(envvar="FLOW_ENGINE_MANAGER_API_URL", help="Where the list is: URL/api/sip/agents.")
    ],
    templates: Annotated[
        Path,
        typer.Option(exists=True, file_okay=False, help="Directory with a config template for each type."),
    ],
    directory: Annotated[
        Path, typer.Option(help="What belongs to this manager: configs, ports, status, lock.")
    ] = Path(".data/voice"),
    first_port: Annotated[int, typer.Option(min=1, max=65_535, help="Lowest port of an agent.")] = 5050,
    refresh_s: Annotated[float, typer.Option(min=1, help="Seconds between two looks at the list.")] = 300,
    health_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two health checks.")] = 10,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds for which an end waits for calls.")] = 300,
    agent_command: Annotated[
        str, typer.Option(help="Runs an agent; --config FILE --port N are appended.")
    ] = AGENT_COMMAND,
    sip_bridge_command: Annotated[
        str, typer.Option(help="Runs a SIP bridge, beside agents whose sipBridge is true; empty: none.")
    ] = "",
) -> None:
    """Run an agent for each entry of the list until SIGINT or SIGTERM; SIGHUP looks at the list now."""
    options = ManageOptions(
        _api_url(api),
        templates,
        directory,
        first_port,
        refresh_s,
        health_s,
        drain_s,
        _words("--agent-command", agent_command),
        _words("--sip-bridge-command", sip_bridge_command),
    )
    if not options.agent_command:
        raise typer.BadParameter("--agent-command is empty")
    # Only this command needs what it loads; every other one would start slowly.
    managing = import_module("service.voice_managing")
    try:
        managing.manage_until_stopped(options)
    except FlowEngineError as error:
        typer.echo(f"flow-engine does not start: {error.detail}", err=True)
        raise typer.Exit(2) from None


def _api_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    else:
        usable = usable and not (parts.username or parts.password or parts.query or parts.fragment)
    if not usable:
        raise typer.BadParameter("--api is http:// or https://, a host, and no query or credentials")
    return text.rstrip("/")


def _words(name: str, command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error}") from None

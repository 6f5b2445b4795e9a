"""Run the service manager, or the SIP bridge of one of its agents, in this process until it is stopped."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.http_tools.body_builders import installed_builders
from channels.voice.carriers.table import CARRIERS, CarrierName
from channels.voice.manager import agents_list, configs, fleet, processes
from channels.voice.manager.directory import Directory, locked_directory
from channels.voice.manager.front import MAX_HEAD_BYTES, Front, Routes
from channels.voice.manager.manager import Manager, Pace
from channels.voice.manager.roster import Roster, Source
from channels.voice.sip_bridge.account import Account, checked_username, server_in
from channels.voice.sip_bridge.phone import SipPhone
from flow_engine.errors import CallTheOperator
from service.logs import configure_logging
from service.serving import announce
from service.settings import read_settings


@dataclass(frozen=True, slots=True)
class ManageOptions:
    """Of the command line. `api_url` has no slash at its end, the commands are split into their words. Times
    are in seconds, ports 1 to 65,535."""

    api_url: str
    templates: Path | None
    directory: Path
    first_port: int
    refresh_s: float
    health_s: float
    drain_s: float
    agent_command: tuple[str, ...]
    sip_bridge_command: tuple[str, ...]
    front: tuple[str, int] | None
    """Address and port of the one door to all agents; None: there is none."""


class ManagerSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="FLOW_ENGINE_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    manager_api_token: SecretStr | None = Field(
        default=None, description="Bearer token for the list of agents; unset: asked without one"
    )
    manager_stop_s: float = Field(
        default=40.0, gt=0, description="Seconds after which a process that was asked to end is killed"
    )
    outbound_allow: str = Field(
        default="", description="Hosts, host:port or CIDR, comma-separated, that outbound calls may reach"
    )
    voice_carrier: CarrierName = Field(default="twilio", description="The carrier of all agents")
    public_url: str | None = Field(
        default=None,
        description="Where Twilio reaches the agents; ${id} and ${port} are each agent's own, and without "
        "them several agents are at URL/ID",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level logged"
    )

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        filled = url and url.replace("${id}", "id").replace("${port}", "1")
        if filled is not None and ("$" in filled or not agents_list.is_public_url(filled)):
            raise ValueError("not https://host[:port][/path], in which ${id} and ${port} may stand")
        return url


def manage_until_stopped(options: ManageOptions) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start."""
    settings = read_settings(ManagerSettings)
    configure_logging(settings.log_level)
    limits = fleet.Limits(drain_s=options.drain_s, stop_s=settings.manager_stop_s)
    # What a killed manager has left needs this long to end.
    wait_s = limits.stop_s + processes.LAUNCHER_ENDS_WITHIN_S
    with locked_directory(options.directory, wait_s) as directory:
        asyncio.run(_manage(options, settings, directory, limits))


async def _manage(
    options: ManageOptions, settings: ManagerSettings, directory: Directory, limits: fleet.Limits
) -> None:
    async with AsyncExitStack() as stack:
        allowed = AllowList.parse(settings.outbound_allow, options.api_url)
        api, local = GuardedClient(allowed), GuardedClient(AllowList.parse("127.0.0.1"))
        stack.push_async_callback(api.aclose)
        stack.push_async_callback(local.aclose)
        carrier = CARRIERS[settings.voice_carrier]
        builders = frozenset(installed_builders(lambda: datetime.now(UTC)))
        files = configs.ConfigFiles(
            options.templates,
            directory.configs,
            options.api_url,
            builders,
            carrier.codec.audio_formats,
        )
        roster = Roster(
            Source(api, options.api_url, settings.manager_api_token),
            files,
            directory,
            first_port=options.first_port,
            bridges=bool(options.sip_bridge_command),
            public_url=settings.public_url,
            prefixed=options.front is not None,
        )
        commands = processes.CommandLines(options.agent_command, options.sip_bridge_command)
        programs = processes.Programs(commands, os.environ, files.path, directory.lock)
        pace = Pace(options.refresh_s, options.health_s, limits)
        manager = Manager(roster, programs, local, directory, pace, wall=lambda: datetime.now(UTC))
        if options.front is not None:
            front = Front(Routes(roster.by_id, roster.by_number, lambda: roster.unread), carrier.documents)
            host, port = options.front
            try:
                server = await asyncio.start_server(front.serve, host, port, limit=MAX_HEAD_BYTES)
            except OSError as error:
                raise CallTheOperator(
                    "address_not_free", f"cannot listen on {host!r} port {port}: {error.strerror}"
                ) from error
            stack.callback(server.close)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, manager.stop)
        loop.add_signal_handler(signal.SIGHUP, manager.refresh_now)
        announce(f"Agents of {options.api_url}, state in {directory.path}. Ctrl-C stops them.")
        await manager.run()


class BridgeSettings(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)

    sip_domain: str = Field(description="The SIP server, host or host:port; UDP")
    sip_username: str = Field(description="The account's name")
    sip_password: SecretStr = Field(description="Its password")
    agent_port: int = Field(ge=1, le=65_535, description="Where the voice agent is on this machine")
    log_level: str = Field(default="info", description="Lowest level logged")

    @field_validator("sip_domain")
    @classmethod
    def _a_server(cls, value: str) -> str:
        server_in(value)
        return value

    @field_validator("sip_username")
    @classmethod
    def _a_username(cls, value: str) -> str:
        return checked_username(value)


def bridge_until_stopped() -> None:
    """Returns after SIGINT or SIGTERM and the last call, with no registration left; a second signal ends
    calls at once. Raises FlowEngineError for
    settings that are missing, and for a server without an address."""
    settings = read_settings(BridgeSettings, lambda name: name.upper())
    configure_logging(settings.log_level)
    account = Account(settings.sip_domain, settings.sip_username, settings.sip_password)
    asyncio.run(_bridge(account, settings.agent_port))


async def _bridge(account: Account, agent_port: int) -> None:
    local = GuardedClient(AllowList.parse("127.0.0.1"))
    phone = SipPhone(account, agent_port, local)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, phone.stop)
    announce(f"SIP bridge of {account.domain} to port {agent_port}. Ctrl-C stops it.")
    try:
        await phone.run()
    except OSError as error:
        raise CallTheOperator("sip_server_unknown", f"cannot reach {account.domain!r}: {error}") from error
    finally:
        await local.aclose()

"""Run the SIP bridge of one voice agent in this process until it is stopped."""

import asyncio
import signal
from contextlib import suppress

import typer
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.voice.sip_bridge.phone import Account, SipPhone
from flow_engine.errors import CallTheOperator
from service.logs import configure_logging
from service.settings import read_settings


class BridgeSettings(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)

    sip_domain: str = Field(description="The SIP server, host or host:port; UDP")
    sip_username: str = Field(description="The account's name")
    sip_password: SecretStr = Field(description="Its password")
    agent_port: int = Field(ge=1, le=65_535, description="Where the voice agent is on this machine")
    log_level: str = Field(default="info", description="Lowest level logged")


def bridge_until_stopped() -> None:
    """Returns after SIGINT or SIGTERM, with no call and no registration left. Raises FlowEngineError for
    settings that are missing, and for a server without an address."""
    settings = read_settings(BridgeSettings, lambda name: name.upper())
    configure_logging(settings.log_level)
    account = Account(settings.sip_domain, settings.sip_username, settings.sip_password)
    asyncio.run(_bridge(account, settings.agent_port))


async def _bridge(account: Account, agent_port: int) -> None:
    local = GuardedClient(AllowList.parse("127.0.0.1"))
    running = asyncio.ensure_future(SipPhone(account, agent_port, local).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    typer.echo(f"SIP bridge of {account.domain} to port {agent_port}. Ctrl-C stops it.", err=True)
    try:
        with suppress(asyncio.CancelledError):
            await running
    except OSError as error:
        raise CallTheOperator("sip_server_unknown", f"cannot reach {account.domain!r}: {error}") from error
    finally:
        await local.aclose()

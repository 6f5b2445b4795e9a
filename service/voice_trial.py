"""A whole voice agent inside this process, on a free port: for tests of configs, and for `voice demo`.

    async with FakeRealtime(script) as model, trial_agent(Path("desk.json"), model.url) as agent:
        async with FakeTwilioCall(agent.line_url) as call:
            ...

It is what `voice serve` runs, with settings of its own: nothing of the environment counts but the key of a
flow engine.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import SecretStr

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.http_tools.body_builders import installed_builders
from channels.voice.config.loader import load_config
from channels.voice.config.models import VoiceConfig
from channels.voice.metrics import Counting
from channels.voice.server.app import voice_app
from channels.voice.server.serving import server_of
from channels.voice.server.settings import VoiceSettings
from flow_engine.errors import Finding
from service.voice_answering import Parts, VoiceAnswering


@dataclass(frozen=True, slots=True)
class TrialAgent:
    """`url` is that of its HTTP side, such as `/metrics`; `line_url` takes Media Streams."""

    url: str
    line_url: str
    config: VoiceConfig
    warnings: tuple[Finding, ...]


@asynccontextmanager
async def trial_agent(
    config: Path | bytes, model_url: str, *, base_url: str | None = None, recordings: Path | None = None
) -> AsyncGenerator[TrialAgent]:
    """Serves until the block ends; calls that are left then are ended, with their lifecycle.

    `base_url` stands in for the config's own. Raises ConfigRefused.
    """
    builders = installed_builders(lambda: datetime.now(UTC))
    loaded = load_config(config, builders=tuple(builders), base_url=base_url)
    settings = _settings(model_url)
    outbound = GuardedClient(AllowList.parse(settings.outbound_allowed(loaded.config.base_url)))
    counting = Counting()
    parts = Parts(settings, loaded.config, builders, outbound, counting, None, None, recordings)
    answering = VoiceAnswering(parts)
    listening = socket.create_server(("127.0.0.1", 0))
    server = server_of(voice_app(settings, answering, counting, None))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield TrialAgent(f"http://{address}", f"ws://{address}/media-stream", loaded.config, loaded.warnings)
    finally:
        await answering.close()
        server.should_exit = True
        await serving
        await outbound.aclose()


def _settings(model_url: str) -> VoiceSettings:
    defaults = {name: field.default for name, field in VoiceSettings.model_fields.items()}
    return VoiceSettings.model_validate(
        {**defaults, "realtime_url": model_url, "openai_api_key": SecretStr("trial")}
    )

"""A whole agent in this process, as it is served: its config, its business's API and the model's server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from adapters.http_door import listen
from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.http_tools.body_builders import default_builders
from channels.voice.carriers.carrier import Carrier
from channels.voice.carriers.sip.calls import SipCalls
from channels.voice.config.loader import load_config
from channels.voice.metrics import Counting
from channels.voice.server.app import VoiceApp, voice_app
from channels.voice.server.serving import server_of
from service.voice import VoiceAnswering, VoiceDependencies
from tests.channels.voice.business_server import BusinessServer
from tests.channels.voice.fake_sip import Webhook
from tests.channels.voice.server.front_desk import secret, voice_settings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def simple_config(**more: Any) -> dict[str, Any]:
    """An agent that greets, has a tool of each kind and keeps books. HTTP calls may take half a second."""
    look_up: dict[str, Any] = {
        "type": "http", "method": "POST", "url": "{{base_url}}/tool", "timeout_s": 0.5,
        "body": {"q": "{{args.q}}"},
    }  # fmt: skip
    declared = [
        {"type": "function", "name": name, "description": name, "parameters": {"type": "object"}}
        for name in ("look_up", "end_call")
    ]
    return {
        "version": "2.0",
        "agent": {"id": "a-1", "name": "Desk", "type": "standard", "language": "en-GB"},
        "base_url": "https://replaced.example",
        "session": {"mode": "inline", "instructions": "Answer.", "tools": declared},
        "greeting": {"unknown_customer": "Greet the caller."},
        "tools": {"look_up": look_up, "end_call": {"type": "builtin", "action": "hangup"}},
        "lifecycle": {
            "on_start": {"method": "POST", "url": "{{base_url}}/start", "timeout_s": 0.5, "body": {"a": 1}},
            "on_end": {
                "method": "POST", "url": "{{base_url}}/end", "timeout_s": 0.5,
                "body": {"outcome": "{{outcome}}", "said": "{{transcript}}"},
            },
            "outcome_rules": [{"flag": None, "outcome": "talked", "priority": 1}],
        },
        **more,
    }  # fmt: skip


CHECK: dict[str, Any] = {
    "name": "blocked", "method": "GET", "url": "{{base_url}}/check", "timeout_s": 0.5,
    "block_if": "$.blocked == true", "on_block": "hangup",
}  # fmt: skip
FETCHED: dict[str, Any] = {
    "mode": "config_url", "method": "GET", "url": "{{base_url}}/session", "timeout_s": 0.5,
    "response_mapping": {"instructions": "$.prompt"},
}  # fmt: skip


@dataclass
class ServedAgent:
    app: VoiceApp
    answering: VoiceAnswering
    counting: Counting
    http: httpx.AsyncClient
    port: int

    @property
    def line_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/media-stream"

    async def take(self, webhook: Webhook) -> str:
        reply = await self.http.post("/sip", content=webhook.body, headers=dict(webhook.headers))
        return reply.json()["outcome"]

    def count(self, name: str, **labels: str) -> float:
        return self.counting.registry.get_sample_value(f"flow_engine_voice_{name}", labels) or 0.0

    async def metrics(self) -> Mapping[str, float]:
        """By name and labels, as in `calls_total{reason=refused}`, without histograms and what is 0."""
        text = (await self.http.get("/metrics")).text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            if family.type == "histogram":
                continue
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                name = sample.name.removeprefix("flow_engine_voice_") + (f"{{{labels}}}" if labels else "")
                if sample.value and not name.split("{")[0].endswith("_created"):
                    found[name] = sample.value
        return found


@asynccontextmanager
async def served_agent(
    config: dict[str, Any],
    business: BusinessServer,
    realtime_url: str,
    carrier: Carrier | None = None,
    **given: object,
) -> AsyncGenerator[ServedAgent]:
    """Afterwards every call has ended, with its end told."""
    builders = default_builders(lambda: datetime.now(UTC))
    loaded = load_config(json.dumps(config).encode(), builders=tuple(builders), base_url=business.url)
    settings = voice_settings(
        realtime_url=realtime_url,
        openai_api_key=secret("sk-test"),
        openai_webhook_secret=secret(SECRET),
        **given,
    )
    outbound = GuardedClient(AllowList.parse(settings.outbound_allowed(loaded.config.base_url)))
    counting = Counting()
    calls = SipCalls(outbound, realtime_url, "sk-test")
    carrier = carrier or settings.open_carrier(outbound)
    clock = asyncio.get_running_loop().time
    parts = VoiceDependencies(
        settings, loaded.config, builders, outbound, counting, carrier, calls, clock=clock
    )
    answering = VoiceAnswering(parts)
    app = voice_app(settings, carrier, answering, counting, calls, clock=clock)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = server_of(app)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5) as http:
        try:
            yield ServedAgent(app, answering, counting, http, port)
        finally:
            await answering.close()
            if app.sip is not None:
                await app.sip.close()
            server.should_exit = True
            await serving
            await outbound.aclose()

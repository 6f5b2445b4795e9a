"""Calls that were written down by hand, and what an agent has to do in each of them.

`golden/NAME.events.jsonl` is a recording: what the line, the model and the business say. The config it is
for is of the kind that NAME begins with. `golden/NAME.expected.jsonl` is what `voice replay --audio` prints
for it, with references to the config (`golden_texts`) in place of the config's own words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from channels.http_tools.body_builders import installed_builders
from channels.voice.call.ports import OpenCall
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.config.loader import load_config
from channels.voice.recording import read_recording
from channels.voice.replay import BEGAN, replay
from flow_engine.ports.outbound import OutboundSender
from service.voice import open_call_of
from tests.channels.voice.golden_texts import resolved

DIRECTORY = Path(__file__).parent / "golden"
EVENTS = ".events.jsonl"


@dataclass(frozen=True)
class Golden:
    name: str

    @property
    def kind(self) -> str:
        return self.name.partition("_")[0]

    @property
    def events(self) -> Path:
        return DIRECTORY / f"{self.name}{EVENTS}"

    @property
    def expected_file(self) -> Path:
        return DIRECTORY / f"{self.name}.expected.jsonl"

    def expected(self, config: dict[str, Any]) -> list[Any]:
        lines = self.expected_file.read_bytes().splitlines()
        return [resolved(orjson.loads(line), config) for line in lines]

    def played(self, config: dict[str, Any]) -> list[Any]:
        """What an agent with this config does, each step as `voice replay` prints it."""
        loaded = load_config(orjson.dumps(config), builders=tuple(installed_builders(lambda: BEGAN)))

        def open_for(outbound: OutboundSender, wall: Callable[[], datetime]) -> OpenCall:
            return open_call_of(loaded.config, outbound, wall)

        entries = read_recording(self.events.read_bytes(), TwilioStreams())
        done = replay(entries, open_for, loaded.config.settings(), TwilioStreams()).done
        return [{"at_ms": entry.at_ms, "to": entry.side, "message": entry.message} for entry in done]


GOLDENS = tuple(Golden(file.name.removesuffix(EVENTS)) for file in sorted(DIRECTORY.glob(f"*{EVENTS}")))

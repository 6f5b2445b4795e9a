"""Replay a recording of a call against a config, and print what the agent would do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path

import orjson
import typer

from channels.http_tools.body_builders import installed_builders
from channels.voice.call.ports import OpenCall
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.recording import Entry, RecordingRefused, read_recording
from channels.voice.replay import BEGAN, replay
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundSender
from service.logs import configure_logging
from service.voice import config_or_exit, open_call_of


def replay_to_output(config: Path, events: Path, *, with_audio: bool) -> None:
    """Prints one JSON object a line: `at_ms`, `to` (line, model or http) and what.

    Raises CorrectTheInput for a recording that is none, typer.Exit(2) for a config with errors.
    """
    configure_logging("warning")
    loaded = config_or_exit(config, clock=lambda: BEGAN)

    def open_for(
        outbound: OutboundSender, wall: Callable[[], datetime], clock: Callable[[], float]
    ) -> OpenCall:
        return open_call_of(loaded.config, installed_builders(wall), outbound, wall)

    try:
        entries = tuple(read_recording(events.read_bytes()))
        with redirect_stdout(sys.stderr):  # the log: on standard output are the steps, and nothing else
            done = replay(entries, open_for, loaded.config.settings(), TwilioStreams()).done
    except OSError as error:
        raise CorrectTheInput("recording_not_readable", f"{str(events)!r}: {error.strerror}") from error
    except RecordingRefused as refused:
        raise CorrectTheInput("recording_invalid", f"{str(events)!r}: {refused}") from refused
    for entry in done:
        if _is_audio(entry) and not with_audio:
            continue
        line = {"at_ms": entry.at_ms, "to": entry.side, "message": entry.message}
        typer.echo(orjson.dumps(line).decode())


def _is_audio(entry: Entry) -> bool:
    message = entry.message
    if not isinstance(message, dict):
        return False
    return message.get("event") == "media" or message.get("type") == "input_audio_buffer.append"

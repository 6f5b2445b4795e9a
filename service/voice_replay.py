"""Replay a recording of a call against a config, and print what the agent would do."""

import itertools
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import cast

import orjson
import typer

from channels.voice.call.ports import OpenCall
from channels.voice.carriers.carrier import StreamCodec
from channels.voice.carriers.table import CARRIERS
from channels.voice.recording import Entry, RecordingRefused, read_recording
from channels.voice.replay import BEGAN, Answers, OpenModel, PlayedModel, replay
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.realtime_session import RealtimeSession
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue
from service.logs import configure_logging
from service.voice import config_or_exit, open_call_of
from service.voice_demo import script_of

_METHOD_AND_PATH = re.compile(r"[A-Z]+ /\S*")


def replay_to_output(
    config: Path,
    events: Path,
    carrier: str,
    *,
    with_audio: bool,
    http: Path | None = None,
    script: Path | None = None,
) -> None:
    """Prints one JSON object a line: `at_ms`, `to` (line, model or http) and what. `http` holds answers of
    HTTP calls, `script` what the model plays instead of what was recorded of one.

    Raises CorrectTheInput for a carrier that there is not, and for a recording, answers or a script that are
    none, typer.Exit(2) for a config with errors.
    """
    if carrier not in CARRIERS:
        raise CorrectTheInput("carrier_unknown", f"no carrier {carrier!r}; there are: {', '.join(CARRIERS)}")
    codec = CARRIERS[carrier].codec
    configure_logging("warning")
    loaded = config_or_exit(config, clock=lambda: BEGAN)

    def open_for(outbound: OutboundSender, wall: Callable[[], datetime]) -> OpenCall:
        return open_call_of(loaded.config, outbound, wall)

    try:
        entries = tuple(read_recording(events.read_bytes(), codec))
        with redirect_stdout(sys.stderr):  # the log: on standard output are the steps, and nothing else
            settings = loaded.config.settings()
            replayed = replay(
                entries,
                open_for,
                settings,
                codec,
                max_duration_s=loaded.config.max_duration_s,
                answers=None if http is None else _answers(http),
                model=None if script is None else _played(script, settings.model),
            )
    except OSError as error:
        raise CorrectTheInput("recording_not_readable", f"{str(events)!r}: {error.strerror}") from error
    except RecordingRefused as refused:
        raise CorrectTheInput("recording_invalid", f"{str(events)!r}: {refused}") from refused
    for entry in replayed.done:
        if _is_audio(entry, codec) and not with_audio:
            continue
        line = {"at_ms": entry.at_ms, "to": entry.side, "message": entry.message}
        typer.echo(orjson.dumps(line).decode())


def _answers(file: Path) -> Answers:
    """Raises CorrectTheInput `answers_invalid`."""
    expected = 'accepted is a JSON object by method and path, such as {"POST /orders": {"id": 7}}'
    try:
        read = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise CorrectTheInput("answers_invalid", f"{str(file)!r}: {error}; {expected}") from error
    if not isinstance(read, dict):
        raise CorrectTheInput("answers_invalid", f"{str(file)!r}: {expected}")
    answers = cast("dict[str, JsonValue]", read)
    if wrong := sorted(name for name in answers if not _METHOD_AND_PATH.fullmatch(name)):
        raise CorrectTheInput("answers_invalid", f"{str(file)!r}: {wrong!r}; {expected}")
    return answers


def _played(file: Path, model: str) -> OpenModel:
    """Raises as `script_of`."""
    script = script_of(file)
    numbers = itertools.count(1)

    def opened(send: Callable[[bytes], None]) -> PlayedModel:
        return RealtimeSession(send, model=model, script=script, pace=Pace(), numbers=lambda: next(numbers))

    return opened


def _is_audio(entry: Entry, codec: StreamCodec) -> bool:
    message = entry.message
    if not isinstance(message, dict):
        return False
    frame = codec.recorded(message)
    return message.get("type") == "input_audio_buffer.append" or (frame is not None and frame.is_audio)

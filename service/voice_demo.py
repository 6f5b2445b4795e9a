"""`flow-engine voice demo`: a call that needs no account and no phone, told as it goes.

The agent is the real one, and so are its config, its HTTP calls and its line with the way of the audio there
and back. The model plays a script, the caller speaks texts, and a business answers whatever it is asked.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from pydantic import ValidationError

from channels.voice.config import loader
from channels.voice.testing.fake_business import FakeBusiness
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Reaction, Say, Script, UseTool, read_script
from flow_engine.errors import CorrectTheInput
from service.logs import configure_logging
from service.voice_dialogue import Dialogue
from service.voice_trial import trial_agent

PHONE: Final = "+442079460123"
CALM_S: Final = 0.6
"""The agent has nothing to add when it has been quiet for so long."""

PATIENCE_S: Final = 15.0
LOOK_S: Final = 0.02

NOTE: Final = (
    "No account and no phone are used: the model plays a script, the caller's words are texts, and the "
    "business is a stand-in. The agent, its config and the timing of the line are real."
)


@dataclass(frozen=True, slots=True)
class CallerLine:
    """What the caller says when the agent is done, or `after_ms` of what it is saying."""

    text: str
    after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Play:
    config: Path
    script: Script
    lines: tuple[CallerLine, ...]
    base_url: str | None = None
    recordings: Path | None = None


SHIPPED_CONFIG: Final = Path(loader.__file__).parent / "examples" / "switchboard.json"
SHIPPED_SCRIPT: Final = Script(
    (
        Reaction((Say("Northgate Instruments, good morning. What can I do for you?", 1800),), "phone rings"),
        Reaction(
            (
                Say(
                    "I am sorry to hear that. Our support is there from eight to six, and if all of them are "
                    "busy you will hear some music until somebody is free.",
                    6000,
                ),
            ),
            "user: My scales",
        ),
        Reaction(
            (UseTool("transfer_call", {"department": "support", "reason": "Scales do not switch on"}),),
            "user: Just put me through",
        ),
        Reaction((Say("I am putting you through to support. Goodbye.", 1500), UseTool("end_call")), "tool:"),
    )
)
SHIPPED_LINES: Final = (
    CallerLine("My scales do not switch on."),
    CallerLine("Just put me through!", after_ms=2000),
)


def play_of(
    config: Path | None,
    script: Path | None,
    say: Sequence[str],
    *,
    base_url: str | None = None,
    recordings: Path | None = None,
) -> Play:
    """What is not given comes from the shipped play, for the shipped config; another config is its caller's
    alone. Raises CorrectTheInput for a script that is none."""
    lines = tuple(CallerLine(text) for text in say)
    if config is None:
        read = SHIPPED_SCRIPT if script is None else _script(script)
        return Play(SHIPPED_CONFIG, read, lines or SHIPPED_LINES, base_url, recordings)
    return Play(config, Script() if script is None else _script(script), lines, base_url, recordings)


def demonstrate(play: Play) -> int:
    """Returns the exit code: 0 for a call that went as the protocols have it, 2 for a config with errors,
    each of which has been printed."""
    configure_logging("warning")
    try:
        return asyncio.run(_demonstrate(play))
    except loader.ConfigRefused as refused:
        for problem in refused.problems:
            typer.echo(f"{play.config}: error at {problem.pointer or '/'}: {problem.message}", err=True)
        return 2


async def _demonstrate(play: Play) -> int:
    async with (
        FakeRealtime(play.script) as model,
        FakeBusiness(otherwise={"id": "demo-1"}) as business,
    ):
        dialogue = Dialogue(model, business)
        base_url = play.base_url or business.url
        async with trial_agent(
            play.config, model.url, base_url=base_url, recordings=play.recordings
        ) as agent:
            for warning in agent.warnings:
                typer.echo(f"{play.config}: warning at {warning.pointer or '/'}: {warning.message}", err=True)
            typer.echo(NOTE)
            call = FakeTwilioCall(agent.line_url, parameters={"callerPhone": PHONE})
            call.stream_sid = f"MZ{uuid.uuid4().hex}"  # names the recording
            async with call:
                dialogue.begins(call, f"from {PHONE}, answered by {agent.config.agent.name!r}")
                await _Talk(call, dialogue).run(play.lines)
                dialogue.ends()
        dialogue.tell()
    mistakes = [f"{each.code}: {each.message}" for session in model.sessions for each in session.errors]
    mistakes += call.mistakes
    for mistake in mistakes:
        typer.echo(f"not as the protocol has it: {mistake}", err=True)
    return 1 if mistakes else 0


class _Talk:
    """The caller's side of a call. Whatever happens meanwhile is told."""

    def __init__(self, call: FakeTwilioCall, dialogue: Dialogue) -> None:
        self._call = call
        self._dialogue = dialogue
        self._loop = asyncio.get_running_loop()

    async def run(self, lines: Sequence[CallerLine]) -> None:
        for line in lines:
            await self._turn_comes(line.after_ms)
            if not self._call.socket.is_open:
                return
            self._dialogue.caller_says(line.text)
            said = self._call.say(line.text)
            await self._until(lambda said=said: said.done(), PATIENCE_S)
        await self._turn_comes(None)
        if self._call.socket.is_open:
            await self._call.hang_up()

    async def _turn_comes(self, after_ms: int | None) -> None:
        """Until the agent has said so much of something new, or all that it had to say."""
        heard = self._dialogue.heard_ms
        if after_ms is None:
            await self._until(lambda: self._dialogue.heard_ms > heard and self._dialogue.is_calm(CALM_S))
        else:
            await self._until(lambda: self._dialogue.heard_ms >= heard + after_ms)

    async def _until(self, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        until = self._loop.time() + within_s
        while self._call.socket.is_open and self._loop.time() < until and not condition():
            self._dialogue.tell()
            await asyncio.sleep(LOOK_S)


def _script(file: Path) -> Script:
    try:
        return read_script(file)
    except OSError as error:
        raise CorrectTheInput("script_not_readable", f"{str(file)!r}: {error.strerror}") from error
    except ValidationError as error:
        told = "; ".join(
            f"{'/'.join(map(str, each['loc'])) or 'it'}: {each['msg']}"
            for each in error.errors(include_input=False)
        )
        raise CorrectTheInput("script_invalid", f"{str(file)!r}: {told}") from error

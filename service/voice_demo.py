"""`flow-engine voice demo`: a call that needs no account and no phone, printed as it goes.

The agent is the real one, and so are its config, its HTTP calls and its line with the way of the audio there
and back. The model plays a script, the caller speaks texts, and a business answers whatever it is asked.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson
import typer
from pydantic import ValidationError

from channels.voice.config import loader
from channels.voice.testing import fake_business, fake_realtime, fake_twilio, realtime_session
from channels.voice.testing.script import Reaction, Say, Script, UseTool, read_script
from flow_engine.errors import CorrectTheInput
from service.logs import configure_logging
from service.voice import print_findings, trial_agent

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


SHIPPED_CONFIG: Final = loader.EXAMPLES / "switchboard.json"
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
        read = SHIPPED_SCRIPT if script is None else script_of(script)
        return Play(SHIPPED_CONFIG, read, lines or SHIPPED_LINES, base_url, recordings)
    return Play(config, Script() if script is None else script_of(script), lines, base_url, recordings)


def demonstrate(play: Play) -> None:
    """Raises typer.Exit(1) for a call that did not go as the protocols have it, typer.Exit(2) for a config
    with errors, each of which has been printed."""
    configure_logging("warning")
    try:
        mistakes = asyncio.run(_demonstrate(play))
    except loader.ConfigRefused as refused:
        print_findings(play.config, "error", refused.problems)
        raise typer.Exit(2) from None
    for mistake in mistakes:
        typer.echo(f"not as the protocol has it: {mistake}", err=True)
    if mistakes:
        raise typer.Exit(1)


async def _demonstrate(play: Play) -> Sequence[str]:
    async with (
        fake_realtime.FakeRealtime(play.script) as model,
        fake_business.FakeBusiness(otherwise={"id": "demo-1"}) as business,
    ):
        dialogue = CallLog(model, business)
        base_url = play.base_url or business.url
        async with trial_agent(
            play.config, model.url, base_url=base_url, recordings=play.recordings
        ) as agent:
            print_findings(play.config, "warning", agent.warnings)
            typer.echo(NOTE)
            call = fake_twilio.FakeTwilioCall(agent.line_url, parameters={"callerPhone": PHONE})
            call.stream_sid = f"MZ{uuid.uuid4().hex}"  # names the recording
            async with call:
                dialogue.begins(call, f"from {PHONE}, answered by {agent.config.agent.name!r}")
                await _Talk(call, dialogue).run(play.lines)
                dialogue.ends()
        dialogue.tell()
    mistakes = [f"{each.code}: {each.message}" for session in model.sessions for each in session.errors]
    return [*mistakes, *call.mistakes]


class _Talk:
    """The caller's side of a call. Whatever happens meanwhile is printed."""

    def __init__(self, call: fake_twilio.FakeTwilioCall, dialogue: CallLog) -> None:
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


def script_of(file: Path) -> Script:
    """Raises CorrectTheInput `script_not_readable`, `script_invalid` with every mistake."""
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


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    who: str
    what: str


@dataclass(slots=True)
class _Seen:
    """How much of each log has been printed."""

    events: int = 0
    commands: int = 0
    calls: int = 0
    clears: int = 0


class CallLog:
    """A call on the doubles in words, line by line as it goes: who said what when, and what was done for it.

    The call's model is the server's only one.
    """

    def __init__(self, model: fake_realtime.FakeRealtime, business: fake_business.FakeBusiness) -> None:
        self._model = model
        self._business = business
        self._call: fake_twilio.FakeTwilioCall | None = None
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._seen = _Seen()
        self._texts: dict[int, str] = {}
        self._told_items: set[int] = set()
        self._moments: list[_Moment] = []

    def begins(self, call: fake_twilio.FakeTwilioCall, what: str) -> None:
        self._call = call
        self._began = self._loop.time()
        self._note("line", f"a call {what}")

    def caller_says(self, text: str) -> None:
        speaks = self.heard_ms and not self.is_calm(0.0)
        self._note("caller", f"{'(into these words) ' if speaks else ''}{text}")

    def ends(self) -> None:
        self._note("line", "closed")

    @property
    def heard_ms(self) -> float:
        """How much the caller has heard in all."""
        if self._call is None:
            return 0.0
        self._call.playout.advance(self._loop.time())
        return sum(heard.ends_ms - heard.begins_ms for heard in self._call.playout.heard)

    def is_calm(self, for_s: float) -> bool:
        """The agent has said everything and has been quiet for so long."""
        call, session = self._call, self._session
        if call is None or session is None or session.is_responding:
            return False
        now = self._loop.time()
        last = call.playout.heard[-1].until if call.playout.heard else self._began
        return call.playout.waiting_ms(now) == 0 and now - last >= for_s

    def tell(self) -> None:
        """Print what has happened since the last time."""
        happened = sorted([*self._moments, *self._news()], key=lambda moment: moment.at)
        self._moments.clear()
        for moment in happened:
            typer.echo(f"{max(0.0, moment.at - self._began):5.1f} s  {moment.who:<8}  {moment.what}")

    # Inside ----------------------------------------------------------------------------------------

    @property
    def _session(self) -> realtime_session.RealtimeSession | None:
        return self._model.sessions[0] if self._model.sessions else None

    def _note(self, who: str, what: str) -> None:
        self._moments.append(_Moment(self._loop.time(), who, what))

    def _news(self) -> Iterator[_Moment]:
        seen, session = self._seen, self._session
        if session is not None:
            for event in session.events[seen.events :]:
                if event.kind == "response.output_audio_transcript.delta":
                    number = realtime_session.item_number(str(event.fields["item_id"]))
                    self._texts[number] = self._texts.get(number, "") + str(event.fields["delta"])
                elif event.kind == "response.output_item.done":
                    item = cast("Mapping[str, Any]", event.fields["item"])
                    if item["type"] == "function_call":
                        yield _Moment(event.at, "model", f"calls {item['name']} {item['arguments']}")
            for command in session.commands[seen.commands :]:
                yield from _of_agent(command)
            seen.events, seen.commands = len(session.events), len(session.commands)
        for call in self._business.calls[seen.calls :]:
            body = "" if call.body is None else f" {orjson.dumps(call.body).decode()}"
            yield _Moment(call.at, "business", f"{call.method} {call.path}{body}")
        seen.calls = len(self._business.calls)
        if self._call is not None:
            self._call.playout.advance(self._loop.time())
            for heard in self._call.playout.heard:
                if heard.item is not None and heard.item not in self._told_items:
                    self._told_items.add(heard.item)
                    yield _Moment(heard.at, "agent", self._texts.get(heard.item, "(audio)"))
            for clear in self._call.playout.clears[self._seen.clears :]:
                if clear.dropped_ms:
                    told = f"stops playing; {clear.dropped_ms / 1000:.1f} s of the agent are never heard"
                    yield _Moment(clear.at, "line", told)
            self._seen.clears = len(self._call.playout.clears)


def _of_agent(command: realtime_session.Command) -> Iterator[_Moment]:
    if command.kind == "conversation.item.truncate":
        heard_s = cast("int", command.fields["audio_end_ms"]) / 1000
        yield _Moment(command.at, "model", f"is told that {heard_s:.1f} s of its last words were heard")
    elif command.kind == "conversation.item.create":
        item = cast("Mapping[str, Any]", command.fields["item"])
        if item["type"] == "function_call_output":
            yield _Moment(command.at, "model", f"is told {item['output']}")

"""One phone call as a machine: events of the line and the model in, commands to both out (V12).

It does no I/O and knows no wire. Whatever takes time is started through `CallHooks` and comes back as an
event, so that audio never waits for anything. Rules, each where bridges commonly fail:

- The caller's speech, or a key, stops the agent at once: the line is cleared, the item that was being heard
  is cut where it was heard, items behind it are forgotten, what the model still sends of them is dropped.
- Tools run beside the audio. When the last one of a response has answered, the model is asked once to go on;
  last words wait for one at most.
- Leaving waits until everything that was said has been heard, but not for ever (`CallTermination`).
"""

from collections.abc import Callable
from datetime import datetime

from channels.voice.call import events, ports
from channels.voice.call.audio_output import AudioOutput
from channels.voice.call.dialogue import Dialogue
from channels.voice.call.events import AgentAudio
from channels.voice.call.state import MARK_WITHIN_S, CallTermination, CallTimers, Counts, Keypad, Phase
from flow_engine.values import JsonValue

SAY_GOODBYE = (
    "The call has reached its time limit and ends now. Say goodbye in one short sentence, in the language of "
    "the conversation."
)


class Call:
    """Implements `CallSeat`. `clock` gives monotonic seconds; after `max_duration_s` the agent says goodbye
    by itself."""

    def __init__(
        self,
        line: ports.Line,
        hooks: ports.CallHooks,
        *,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        max_duration_s: float,
        line_plays: bool = True,
    ) -> None:
        """`line_plays` is false where the model's side plays and stops the audio itself (SIP)."""
        self._hooks = hooks
        self._clock = clock
        self.counts = Counts()
        self.settings: ports.SessionSettings | None = None
        self._may_interrupt = False
        self._dialogue = Dialogue(clock)
        self._responses = self._dialogue.responses
        self._silenced = self._responses.silenced
        self._running = self._dialogue.running
        self._output = AudioOutput(line, wall, self._dialogue.spoken, line_plays=line_plays)
        self._termination = CallTermination()
        self._keypad = Keypad()
        self._past_response: str | None = None
        """What the model was saying when the task was switched; it may still ask for tools of the old one."""
        self._timers = CallTimers(clock(), max_duration_s)

    def caller_audio(self, payload: events.Audio) -> None:
        self._timers.line_heard = True
        model = self._dialogue.model
        if model is not None:
            model.append_audio(payload)
        else:
            self.counts.unheard += self._dialogue.keep_audio(payload)

    def line_event(self, event: events.LineEvent) -> None:
        self._timers.line_heard = True
        match event:
            case events.CallerAudio():
                self.caller_audio(event.payload)
            case events.MarkReturned():
                if not self._output.mark_returned(event.name, self._clock()):
                    self.counts.old_marks += 1
                self._settle()
            case events.DigitPressed():
                self._pressed(event.digit)
            case events.StreamStopped():
                if (reason := self._termination.line_stopped()) is not None:
                    self.end(reason)
            case _:
                pass

    def attach(self, model: ports.ModelLink, settings: ports.SessionSettings) -> None:
        """A model is there. One that takes the place of another is sent the conversation so far, and goes on
        where that was."""
        self._use(settings)
        self._dialogue.attach(model, settings, self._output.transcript.turn_of)
        self._respond_if_due()

    def detach(self) -> None:
        """The model is gone. What it was doing is due on the next one, but no words of farewell."""
        self._output.model_gone()
        self._dialogue.detach()
        if self._termination.is_under_way:
            self._responses.wanted = False
            self._termination.last_words_gone()
        self._settle()

    def model_event(self, event: events.ModelEvent) -> None:
        self._timers.model_heard = True
        if type(event) is not AgentAudio:
            if not self._take_words(event) and not self.is_over:
                self._take(event)
            return
        output = self._output
        if output.audio_format is None or event.response_id in self._silenced:
            self.counts.late_audio += 1
            return
        if self._timers.turn_ended_at is not None:
            self.counts.response_seconds += self._timers.first_audio_s(self._clock())
        if not output.play(event, self._clock()):
            self._dialogue.silence(event.response_id)

    def _take_words(self, event: events.ModelEvent) -> bool:
        """Utterances are taken even when the call is over. False for any other event."""
        transcript, now = self._output.transcript, self._clock()
        match event:
            case events.ItemAdded(item_id, role):
                if not self._dialogue.is_own(item_id) and role is not None and role != "system":
                    transcript.added(item_id, role, now)
            case events.OutputTranscriptDelta():
                transcript.piece(event.item_id, event.text)
            case events.InputTranscript() | events.OutputTranscript():
                role = "user" if isinstance(event, events.InputTranscript) else "assistant"
                transcript.text(event.item_id, role, event.text, now)
                self._settle()
            case _:
                return False
        return True

    def _take(self, event: events.ModelEvent) -> None:
        now = self._clock()
        match event:
            case events.SpeechStarted():
                self._responses.speech_started(now)
                self._timers.turn_ended_at = None
                self._interrupted()
            case events.SpeechStopped():
                self._timers.turn_ended(now)
                self._responses.turn_ended(now)
            case events.ResponseStarted():
                self._response_started(event)
            case events.ResponseEnded():
                self._response_ended(event)
            case events.AgentAudioEnded():
                self._output.item_ended(event.item_id)
            case events.FunctionCall():
                if self._dialogue.begin_tool(event):
                    self._begin_tool(event)
            case events.OutputBufferState():
                if event.playing:
                    self.counts.response_seconds += self._timers.first_audio_s(now)
                self._output.remote(event.playing, now)
                self._settle()
            case events.DigitPressed():
                self._pressed(event.digit)
            case events.ModelError():
                self._model_refused(event, now)
            case _:
                pass

    def _model_refused(self, error: events.ModelError, now: float) -> None:
        if self._responses.error(error, now):
            self._hooks.notice(error)
        if self._dialogue.model is not None:
            self._dialogue.model.configure_again(error)
        self._responses.wanted = self._responses.wanted and self._termination.may_speak

    def _begin_tool(self, event: events.FunctionCall) -> None:
        if event.response_id == self._past_response:
            self.counts.tools_stopped += 1
            self._dialogue.tool_stopped(event.call_id)
        else:
            self._hooks.start_tool(event)

    def tool_finished(self, call_id: str, output: JsonValue, seconds: float = 0.0) -> None:
        """A tool's answer, and the seconds that it took; without effect for one that was stopped. After the
        end it is only counted."""
        if call_id not in self._running:
            return
        self.counts.tool_finished(output)
        self.counts.tool_seconds.append(seconds)
        if self.is_over:
            self._running.discard(call_id)
            return
        self._dialogue.tool_answered(call_id, output)
        if not self._running or self._termination.is_under_way:
            self._want_response()

    @property
    def transcript(self) -> tuple[ports.Turn, ...]:
        return self._output.transcript.turns

    @property
    def awaits_transcript(self) -> bool:
        return self._output.transcript.awaits_transcript

    @property
    def awaits_text(self) -> bool:
        """The model has taken a turn of the caller, and has not transcribed it."""
        is_written = self.settings is not None and self.settings.transcription_model is not None
        return is_written and self._output.transcript.awaits_text

    @property
    def is_over(self) -> bool:
        return self._termination.is_over

    def reconfigure(self, settings: ports.SessionSettings) -> None:
        self._use(settings)
        if self._dialogue.model is not None:
            self._dialogue.model.configure(settings)

    def _use(self, settings: ports.SessionSettings) -> None:
        self.settings, self._may_interrupt = settings, settings.allow_interruptions
        if not self.is_over:
            self._output.audio_format = settings.output_format

    def switch_task(self, settings: ports.SessionSettings, command: str | None) -> None:
        self._past_response = self._responses.active
        if not self._termination.is_under_way:
            self._stop_speaking()
        for call_id in self._hooks.stop_other_tools():
            if call_id in self._running:
                self.counts.tools_stopped += 1
                self._dialogue.tool_stopped(call_id)
        self.reconfigure(settings)
        self._dialogue.put_command(command)
        if not self._running:
            self._want_response()

    def instruct(self, text: str) -> None:
        self._dialogue.add_text("system", text)
        self._responses.instructed = True
        self._want_response()

    def greet(self, text: str) -> None:
        """Make the model speak first, on what is put as the caller's side (V4)."""
        self._dialogue.add_text("user", text)
        self._want_response()

    def say_last(self, text: str) -> None:
        """Have exactly this spoken, then leave."""
        self._dialogue.add_text(
            "system", f"Say exactly the following to the caller, and nothing else: {text}"
        )
        self._want_response()
        self._begin_termination("refused", None, last_words=True)

    def hang_up(self) -> None:
        if self._termination.is_under_way:
            return
        waits = self._responses.instructed
        self._responses.wanted = self._responses.wanted and waits
        self._begin_termination("agent_hung_up", None, last_words=waits)

    def transfer(self, target: str) -> None:
        waits = self._responses.wanted or self._responses.is_requested or bool(self._running)
        self._begin_termination("transferred", target, last_words=waits)

    def transfer_ended(self, done: bool) -> None:
        """What became of `CallHooks.transfer`. A call whose transfer failed goes on, unless its line is
        gone."""
        if self._termination.phase not in (Phase.TRANSFERRING, Phase.LEFT):
            return
        reason = self._termination.transferred(done=done)
        self._timers.quiet(self._clock())
        if reason is not None:
            self.end(reason)

    def end(self, reason: ports.EndReason) -> None:
        """At once. From outside for what is nobody's wish: a lost side, the end of the program. What was said
        and the answers of tools under way are taken until `close`."""
        if self._termination.end():
            self._output.audio_format = None
            self._hooks.over(reason)

    def tick(self) -> None:
        """To be called a few times a second."""
        now = self._clock()
        self._settle()
        if self.is_over:
            return
        line_silent, model_silent = self._timers.is_line_silent(now), self._timers.is_model_silent(now)
        if self._termination.is_due(now, self._output.heard_by):
            self._leave()
        elif self._output.line_plays and line_silent:
            self.end("line_lost")
        elif self._responses.is_given_up and not self._termination.is_under_way:
            # As one without credit: the carrier has words for the caller.
            self.end("model_lost")
        elif not self._termination.is_under_way and now >= self._timers.ends_at:
            if speaks := self._dialogue.model is not None:
                self.instruct(SAY_GOODBYE)
            self._begin_termination("time_limit", None, last_words=speaks)
        elif self._dialogue.model is not None and (
            self._responses.is_overdue(now)
            # While the model's side plays by itself, it may have sent all that there is to tell.
            or (model_silent and self._responses.active is not None and not self._output.remote_playing)
        ):
            self._hooks.notice(ports.ModelStalled())
        else:
            if self._responses.is_turn_unanswered(now):
                self._want_response()
            if self.settings is not None and (digits := self._keypad.take(now)):
                pressed = ports.KeysPressed(f"(pressed on the keypad: {digits})")
                self._dialogue.add_text("user", pressed.text)
                self._hooks.notice(pressed)
                self._want_response()
            self._respond_if_due()
            silence_s = None if self.settings is None else self.settings.silence_s
            if silence_s is None or self._termination.is_under_way:
                return
            if self._timers.is_caller_silent(now, silence_s, calm=self.is_calm()):
                self._hooks.notice(ports.CallerSilent())

    def is_calm(self) -> bool:
        """Nothing is going on that a change of the model's connection would disturb."""
        output = self._output
        is_heard = output.is_drained or self._clock() >= output.heard_by + MARK_WITHIN_S
        return self._responses.is_quiet and not self._running and is_heard

    def close(self) -> None:
        """Give out the turns that were still waited for. To be called once, when nothing is waited for after
        the end any more."""
        self.counts.tools_stopped += len(self._running)
        self._running.clear()
        for turn in self._output.rest(self._clock()):
            self._hooks.notice(turn)

    def _pressed(self, digit: str) -> None:
        if self._keypad.press(digit, self._clock()):
            self._timers.quiet(self._clock())
            self._interrupted()

    def _interrupted(self) -> None:
        """By the caller."""
        if self._may_interrupt and not self._termination.is_under_way:
            self._stop_speaking()

    def _stop_speaking(self) -> None:
        active, now = self._responses.active, self._clock()
        if active is not None:
            self._dialogue.silence(active)
        self._note_heard()
        interruption = self._output.interrupt(now)
        self.counts.interruptions += interruption.had_audio or active is not None
        if self._output.line_plays:
            self._dialogue.interrupted(interruption, self._output.is_known)

    def _response_started(self, event: events.ResponseStarted) -> None:
        requested = self._responses.is_requested
        self._responses.started(event.response_id, self._clock())
        termination = self._termination
        if termination.phase is Phase.LAST_WORDS:
            termination.last_words_gone()
            self._responses.wanted = False
        elif termination.is_under_way or (
            requested and self._responses.caller_speaks and self._may_interrupt
        ):
            self._dialogue.silence(event.response_id)
            self._responses.wanted = not termination.is_under_way
            return
        self._responses.instructed = False

    def _response_ended(self, event: events.ResponseEnded) -> None:
        was_active = self._responses.active == event.response_id
        self._responses.ended(event.response_id)
        self._timers.quiet(self._clock())
        self._output.mark_rest()
        self.counts.used(event.usage)
        if event.status in ("failed", "incomplete"):
            why = event.reason or "no reason given"
            self._hooks.notice(events.ModelError(f"response_{event.status}", why))
            if was_active and not (self._termination.is_under_way or event.response_id in self._silenced):
                self._responses.failed(self._clock())
        else:
            self._responses.succeeded()
        self._respond_if_due()
        self._settle()

    def _respond_if_due(self) -> None:
        self._dialogue.respond_if_due(beside_tools=self._termination.is_under_way)

    def _want_response(self) -> None:
        if self._termination.may_speak:
            self._responses.wanted = True
            self._respond_if_due()

    def _note_heard(self) -> None:
        for item_id in self._output.note_heard(self._clock(), speaking=self._responses.active is not None):
            self._dialogue.delete_item(item_id)

    def _begin_termination(self, reason: ports.EndReason, target: str | None, *, last_words: bool) -> None:
        """`last_words` are still to be begun."""
        if self._termination.begin(reason, target, self._clock(), last_words=last_words):
            self._settle()

    def _settle(self) -> None:
        """Give out the turns that are complete, and leave if every utterance has been heard."""
        if self.is_over:
            return
        self._note_heard()
        for turn in self._output.transcript.ready(self._clock()):
            self._hooks.notice(turn)
        if self._termination.phase is not Phase.PLAY_OUT or not self._responses.is_idle:
            return
        self._output.mark_rest()
        if self._output.is_drained:
            self._leave()

    def _leave(self) -> None:
        reason = self._termination.leave()
        if reason is not None:
            self.end(reason)
        elif self._termination.target is not None:
            self._hooks.transfer(self._termination.target)

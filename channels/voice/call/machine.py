"""One phone call as a machine: events of the line and the model in, commands to both out (V12).

It does no I/O and knows no wire. Whatever takes time is started through `CallHooks` and comes back as an
event, so that audio never waits for anything. Rules, each where bridges commonly fail:

- The caller's speech stops the agent at once: the line is cleared, the item that was being heard is cut where
  it was heard, items behind it are forgotten, and what the model still sends of them is dropped.
- Tools run beside the audio. When the last one of a response has answered, the model is asked once to go on.
- Leaving waits until everything that was said has been heard, but not for ever (`termination`).
"""

from collections import deque
from collections.abc import Callable
from datetime import datetime

from channels.voice.call.audio_output import AudioOutput
from channels.voice.call.dialogue import Dialogue
from channels.voice.call.events import (
    AgentAudio,
    AgentAudioEnded,
    Audio,
    CallerAudio,
    DigitPressed,
    FunctionCall,
    InputCommitted,
    InputTranscript,
    ItemAdded,
    LineEvent,
    MarkReturned,
    ModelError,
    ModelEvent,
    OutputBufferState,
    OutputTranscript,
    OutputTranscriptDelta,
    ResponseEnded,
    ResponseStarted,
    SpeechStarted,
    SpeechStopped,
    StreamStopped,
)
from channels.voice.call.ports import (
    CallerSilent,
    CallHooks,
    EndReason,
    Line,
    ModelLink,
    ModelStalled,
    SessionSettings,
    Turn,
)
from channels.voice.call.state import Counts, Keypad, Watch
from channels.voice.call.termination import CallTermination, Phase
from flow_engine.values import JsonValue

LINE_SILENT_S = 15.0
MODEL_SILENT_S = 20.0
"""Without an event in the middle of a response."""

KEPT_WHILE_AWAY = 250
"""Frames of the caller kept while there is no model: 5 s of 20 ms each, the newest."""

SAY_GOODBYE = (
    "The call has reached its time limit and ends now. Say goodbye in one short sentence, in the language of "
    "the conversation."
)
ALREADY_ACTIVE = "conversation_already_has_active_response"


class Call:
    """Implements `CallSeat`. `clock` gives monotonic seconds; after `max_duration_s` the agent says goodbye
    by itself."""

    def __init__(
        self,
        line: Line,
        hooks: CallHooks,
        *,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        max_duration_s: float,
        line_plays: bool = True,
    ) -> None:
        """`line_plays` is false where the model's side plays and stops the audio itself (SIP)."""
        self._hooks = hooks
        self._clock = clock
        self._ends_at = clock() + max_duration_s
        self.counts = Counts()
        self.settings: SessionSettings | None = None
        self._dialogue = Dialogue(clock)
        self._responses = self._dialogue.responses
        self._tools = self._dialogue.tools
        self._output = AudioOutput(line, wall, line_plays=line_plays)
        self._kept: deque[Audio] = deque(maxlen=KEPT_WHILE_AWAY)
        self._termination = CallTermination()
        self._keypad = Keypad()
        self._past_response: str | None = None
        """What the model was saying when the task was switched; it may still ask for tools of the old one."""
        self._turn_ended_at: float | None = None
        """Of the caller, while nothing of the response to it has been heard."""
        self._quiet_since = clock()
        self._line_watch = Watch(clock())
        self._model_watch = Watch(clock())

    # The line --------------------------------------------------------------------------------------

    def caller_audio(self, payload: Audio) -> None:
        self._line_watch.events += 1
        model = self._dialogue.model
        if model is not None:
            model.append_audio(payload)
        else:
            self.counts.unheard += len(self._kept) == KEPT_WHILE_AWAY
            self._kept.append(payload)

    def line_event(self, event: LineEvent) -> None:
        self._line_watch.events += 1
        match event:
            case CallerAudio():
                self.caller_audio(event.payload)
            case MarkReturned():
                if not self._output.mark_returned(event.name, self._clock()):
                    self.counts.old_marks += 1
                self._settle()
            case DigitPressed():
                self._keypad.press(event.digit, self._clock())
            case StreamStopped():
                if (reason := self._termination.line_stopped()) is not None:
                    self.end(reason)
            case _:
                pass

    # The model -------------------------------------------------------------------------------------

    def attach(self, model: ModelLink, settings: SessionSettings, *, resumed: bool = False) -> None:
        """A model is there. Resumed, it is told what was said before, and goes on where that was."""
        self.settings = settings
        self._dialogue.attach(model, settings, self._output.transcript.turn_of if resumed else None)
        if not resumed:
            self._kept.clear()
        while self._kept:
            model.append_audio(self._kept.popleft())
        self._dialogue.respond_if_due()

    def detach(self) -> None:
        """The model is gone. What it was doing is due on the next one, but no words of farewell."""
        self._output.model_gone()
        self._dialogue.detach()
        if self._termination.is_under_way:
            self._responses.wanted = False
            self._termination.last_words_gone()
        self._settle()

    def agent_audio(self, event: AgentAudio) -> None:
        self._model_watch.events += 1
        if self.is_over or self.settings is None or self._responses.is_silenced(event.response_id):
            self.counts.late_audio += 1
            return
        if self._turn_ended_at is not None:
            self._first_audio()
        if not self._output.play(event, self.settings.output_format, self._clock()):
            self._dialogue.silence(event.response_id)

    def model_event(self, event: ModelEvent) -> None:
        if type(event) is AgentAudio:
            self.agent_audio(event)
            return
        self._model_watch.events += 1
        if not self._take_words(event) and not self.is_over:
            self._take(event)

    def _take_words(self, event: ModelEvent) -> bool:
        """What was said is taken even when the call is over. False for any other event."""
        transcript, now = self._output.transcript, self._clock()
        match event:
            case ItemAdded():
                self._item_added(event)
            case InputCommitted():
                transcript.added(event.item_id, "user", now)
                self._dialogue.spoken(event.item_id)
            case OutputTranscriptDelta():
                transcript.piece(event.item_id, event.text)
            case InputTranscript() | OutputTranscript():
                role = "user" if isinstance(event, InputTranscript) else "assistant"
                transcript.text(event.item_id, role, event.text, now)
                self._dialogue.spoken(event.item_id)
                self._settle()
            case _:
                return False
        return True

    def _take(self, event: ModelEvent) -> None:
        match event:
            case SpeechStarted():
                self._caller_speaks()
            case SpeechStopped():
                self._quiet_since = self._turn_ended_at = now = self._clock()
                self._responses.turn_ended(now)
            case ResponseStarted():
                self._response_started(event)
            case ResponseEnded():
                self._response_ended(event)
            case AgentAudioEnded():
                self._output.item_ended(event.item_id)
            case FunctionCall():
                self._function_call(event)
            case OutputBufferState():
                if event.playing and self._turn_ended_at is not None:
                    self._first_audio()
                self._output.remote(event.playing, self._clock())
                self._settle()
            case DigitPressed():
                self._keypad.press(event.digit, self._clock())
            case ModelError():
                self._model_error(event)
            case _:
                pass

    def _function_call(self, event: FunctionCall) -> None:
        if not self._dialogue.begin_tool(event):
            return
        if event.response_id == self._past_response:
            self.counts.tools_stopped += 1
            self._dialogue.tool_stopped(event.call_id)
        else:
            self._hooks.start_tool(event)

    def tool_finished(self, call_id: str, output: JsonValue, seconds: float = 0.0) -> None:
        """A tool's answer, and the seconds that it took; without effect for one that was stopped. After the
        end it is only counted."""
        if call_id not in self._tools.running:
            return
        self.counts.tool_finished(output)
        self.counts.tool_seconds.append(seconds)
        if self.is_over:
            self._tools.running.discard(call_id)
            return
        self._dialogue.tool_answered(call_id, output)
        if not self._tools.running:
            self._want_response()

    # Controls --------------------------------------------------------------------------------------

    @property
    def transcript(self) -> tuple[Turn, ...]:
        return self._output.transcript.turns

    @property
    def awaits_transcript(self) -> bool:
        return self._output.transcript.awaits_transcript

    @property
    def awaits_text(self) -> bool:
        """The model has taken a turn of the caller, and has not written down what was said."""
        is_written = self.settings is not None and self.settings.transcription_model is not None
        return is_written and self._output.transcript.awaits_text

    @property
    def is_over(self) -> bool:
        return self._termination.phase is Phase.OVER

    def reconfigure(self, settings: SessionSettings) -> None:
        self.settings = settings
        if self._dialogue.model is not None:
            self._dialogue.model.configure(settings)

    def switch_task(self, settings: SessionSettings, command: str | None) -> None:
        self._past_response = self._responses.active
        self._stop_speaking()
        for call_id in self._hooks.stop_other_tools():
            if call_id in self._tools.running:
                self.counts.tools_stopped += 1
                self._dialogue.tool_stopped(call_id)
        self.reconfigure(settings)
        self._dialogue.put_command(command)
        if not self._tools.running:
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
        self._begin_termination("refused", last_words=True)

    def hang_up(self) -> None:
        if self._termination.is_under_way:
            return
        waits = self._responses.instructed
        self._responses.wanted = self._responses.wanted and waits
        self._begin_termination("agent_hung_up", last_words=waits)

    def transfer(self, target: str) -> None:
        waits = self._responses.wanted or self._responses.is_requested or bool(self._tools.running)
        self._begin_termination("transferred", target, last_words=waits)

    def transfer_ended(self, done: bool) -> None:
        """What became of `CallHooks.transfer`. A call whose transfer failed goes on, unless its line is
        gone."""
        if self._termination.phase not in (Phase.TRANSFERRING, Phase.LEFT):
            return
        reason = self._termination.transferred(done=done)
        self._quiet_since = self._clock()
        if reason is not None:
            self.end(reason)

    def end(self, reason: EndReason) -> None:
        """At once. From outside for what is nobody's wish: a lost side, the end of the program. What was said
        and the answers of tools under way are taken until `close`."""
        if self._termination.end():
            self._hooks.over(reason)

    # Time ------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called a few times a second."""
        now = self._clock()
        self._settle()
        if self.is_over:
            return
        line_silent = self._line_watch.silent_s(now)
        if self._termination.is_due(now):
            self._leave()
        elif self._output.line_plays and line_silent >= LINE_SILENT_S:
            self.end("line_lost")
        elif not self._termination.is_under_way and now >= self._ends_at:
            self._end_by_time()
        elif self._is_model_stalled(now):
            self._hooks.notice(ModelStalled())
        else:
            if self._responses.is_turn_unanswered(now):
                self._want_response()
            if digits := self._keypad.take(now):
                self._dialogue.add_text("user", f"(pressed on the keypad: {digits})")
                self._want_response()
            self._dialogue.respond_if_due()
            self._notice_silence(now)

    def is_calm(self) -> bool:
        """Nothing is going on that a change of the model's connection would disturb."""
        return self._responses.is_quiet and not self._tools.running and self._output.is_drained

    def close(self) -> None:
        """Give out the turns that were still waited for. To be called once, when nothing is waited for after
        the end any more."""
        self.counts.tools_stopped += len(self._tools.running)
        self._tools.running.clear()
        for turn in self._output.rest(self._clock()):
            self._hooks.notice(turn)

    # Inside ----------------------------------------------------------------------------------------

    def _is_model_stalled(self, now: float) -> bool:
        silent = self._model_watch.silent_s(now)
        # While it plays by itself, it may have sent all that there is to tell.
        waits = self._responses.active is not None and not self._output.remote_playing
        is_silent = waits and silent >= MODEL_SILENT_S
        return self._dialogue.model is not None and (is_silent or self._responses.is_overdue(now))

    def _end_by_time(self) -> None:
        speaks = self._dialogue.model is not None
        if speaks:
            self.instruct(SAY_GOODBYE)
        self._begin_termination("time_limit", last_words=speaks)

    def _first_audio(self) -> None:
        if self._turn_ended_at is not None:
            self.counts.response_seconds.append(self._clock() - self._turn_ended_at)
            self._turn_ended_at = None

    def _caller_speaks(self) -> None:
        self._responses.speech_started(self._clock())
        self._turn_ended_at = None
        if self._may_interrupt() and not self._termination.is_under_way:
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

    def _response_started(self, event: ResponseStarted) -> None:
        requested = self._responses.is_requested
        self._responses.started(event.response_id, self._clock())
        termination = self._termination
        if termination.phase is Phase.LAST_WORDS:
            termination.last_words_gone()
        elif termination.is_under_way or (
            requested and self._responses.caller_speaks and self._may_interrupt()
        ):
            self._dialogue.silence(event.response_id)
            self._responses.wanted = not termination.is_under_way
            return
        self._responses.instructed = False

    def _may_interrupt(self) -> bool:
        return self.settings is not None and self.settings.allow_interruptions

    def _response_ended(self, event: ResponseEnded) -> None:
        was_active = self._responses.active == event.response_id
        departing = self._termination.is_under_way
        self._responses.ended(event.response_id)
        self._quiet_since = self._clock()
        self._output.mark_rest()
        self.counts.used(event.usage)
        if event.status == "failed":
            self._hooks.notice(ModelError("response_failed", event.reason or "no reason given"))
            if was_active and not (departing or self._responses.is_silenced(event.response_id)):
                self._responses.failed(self._clock())
        elif event.status == "completed":
            self._responses.succeeded()
        self._dialogue.respond_if_due()
        self._settle()

    def _item_added(self, event: ItemAdded) -> None:
        if not self._dialogue.is_own(event.item_id) and event.role is not None and event.role != "system":
            self._output.transcript.added(event.item_id, event.role, self._clock())
            self._dialogue.spoken(event.item_id)

    def _model_error(self, event: ModelError) -> None:
        if event.code == ALREADY_ACTIVE:
            self._responses.refused(self._clock())
        else:
            self._hooks.notice(event)
            if self._responses.is_requested and (event.event_id or "").startswith("response.create"):
                self._responses.failed(self._clock())
        if not self._termination.may_speak:
            self._responses.wanted = False

    def _want_response(self) -> None:
        if self._termination.may_speak:
            self._responses.wanted = True
            self._dialogue.respond_if_due()

    def _notice_silence(self, now: float) -> None:
        if self._termination.is_under_way or self.settings is None or self.settings.silence_s is None:
            return
        if not self.is_calm():
            self._quiet_since = now
        elif now - self._quiet_since >= self.settings.silence_s:
            self._quiet_since = now
            self._hooks.notice(CallerSilent())

    def _note_heard(self) -> None:
        speaking = self._responses.active is not None
        for item_id in self._output.note_heard(self._clock(), speaking=speaking):
            self._dialogue.delete_item(item_id)

    def _begin_termination(
        self, reason: EndReason, target: str | None = None, *, last_words: bool = False
    ) -> None:
        """`last_words` are still to be begun."""
        if self._termination.begin(reason, target, self._clock(), last_words=last_words):
            self._settle()

    def _settle(self) -> None:
        """Give out the turns that are complete, and leave if all that was said has been heard."""
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

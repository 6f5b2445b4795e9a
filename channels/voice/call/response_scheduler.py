"""When the model is asked to speak (V12).

A model speaks by itself after the caller's turn. Everything else, such as answers of tools, has to ask for a
response, and only one can be active: what is asked for too early is refused, and what is asked for twice is
said twice. So a wish for a response is kept until

1. no response is active or requested, and the caller is not speaking,
2. no tool is running whose answer the response should have,
3. a turn of the caller that has just ended got its own response, which then grants the wish too, if
   everything that the wish was about had reached the model by then.

Two states say where the model and the caller are:

    response    idle       response.create is sent         requested
                requested  it is refused, or has failed    idle
                any        response.created                active
                active     response.done                   idle
    caller      any        speech_started                  speaking
                speaking   speech_stopped                  awaits a response
                awaiting   a response is active, requested quiet
    both        any        the connection is lost          idle, quiet
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto

TURN_TAKEN_WITHIN_S = 2.0
"""How long the model's own response to a turn is waited for."""

TURN_ANSWERED_WITHIN_S = 5.0
"""After that, the model is asked."""

ANSWERED_WITHIN_S = 15.0
"""A response that was asked for and has not begun by then: the model is stalled."""

AGAIN_AFTER_S = 1.0
"""Before the model is asked again for what it has refused, or failed at."""

MOST_FAILURES = 2
"""In a row. After that it is left to the caller's next turn."""

_REMEMBERED = 64


class ResponseState(Enum):
    IDLE = auto()
    REQUESTED = auto()
    ACTIVE = auto()


class CallerState(Enum):
    QUIET = auto()
    SPEAKING = auto()
    AWAITING = auto()
    """A turn has ended, and the model has not begun to answer it."""


@dataclass(frozen=True, slots=True)
class _Response:
    """`since` is in seconds of the scheduler's clock; `response_id` is empty unless it is active."""

    state: ResponseState = ResponseState.IDLE
    since: float = 0.0
    response_id: str = ""


@dataclass(frozen=True, slots=True)
class _Caller:
    state: CallerState = CallerState.QUIET
    since: float = 0.0


class ResponseScheduler:
    """`now` arguments are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.wanted = False
        self.instructed = False
        """An instruction is there that no response has begun for."""
        self._response = _Response()
        self._caller = _Caller()
        self._not_before = 0.0
        self._failures = 0
        self._unconfirmed: set[str] = set()
        self._unheard_of: OrderedDict[str, None] = OrderedDict()

    @property
    def active(self) -> str | None:
        """The id of the response that the model is giving."""
        return self._response.response_id if self._response.state is ResponseState.ACTIVE else None

    @property
    def is_requested(self) -> bool:
        return self._response.state is ResponseState.REQUESTED

    @property
    def is_idle(self) -> bool:
        """No response is active or requested; one may be wanted."""
        return self._response.state is ResponseState.IDLE

    @property
    def caller_speaks(self) -> bool:
        return self._caller.state is CallerState.SPEAKING

    @property
    def is_quiet(self) -> bool:
        """Nobody speaks and nobody is about to."""
        return self.is_idle and not (self.wanted or self.caller_speaks)

    def sent(self, item_id: str) -> None:
        """A new item is on its way to the model."""
        self._unconfirmed.add(item_id)

    def confirmed(self, item_id: str) -> bool:
        """Whether the item was one that this side has sent."""
        known = item_id in self._unconfirmed
        self._unconfirmed.discard(item_id)
        return known

    def may_request(self, now: float) -> bool:
        if not self.wanted or not self.is_idle or self.caller_speaks or now < self._not_before:
            return False
        return self._caller.state is CallerState.QUIET or now - self._caller.since >= TURN_TAKEN_WITHIN_S

    def requested(self, now: float) -> None:
        """On its way, at `now` seconds, behind all items that were sent, so that it takes them into
        account."""
        self.wanted = False
        self._response = _Response(ResponseState.REQUESTED, now)
        self._answered()
        self._unconfirmed.clear()

    def refused(self, now: float) -> None:
        """Another response was active already: ask again when that one has ended, else after a second. It may
        also have been the model itself that wanted to answer a turn, and does not try again."""
        self._answered()
        self.wanted = True
        if self.active is None:
            self._response = _Response()
            self._not_before = now + AGAIN_AFTER_S

    def failed(self, now: float) -> None:
        """What was asked for, or began, failed by the model's fault: due again after a second, at most twice
        in a row."""
        self._failures += 1
        if self._failures <= MOST_FAILURES:
            if self.is_requested:
                self._response = _Response()
            self.wanted = True
            self._not_before = now + AGAIN_AFTER_S

    def is_overdue(self, now: float) -> bool:
        return self.is_requested and now - self._response.since >= ANSWERED_WITHIN_S

    def is_turn_unanswered(self, now: float) -> bool:
        """The model lets a turn of the caller pass: 5 seconds after its end nothing has begun. False where a
        response is wanted anyway."""
        caller = self._caller
        late = caller.state is CallerState.AWAITING and now - caller.since >= TURN_ANSWERED_WITHIN_S
        return late and not self.wanted

    def speech_started(self, now: float) -> None:
        self._caller = _Caller(CallerState.SPEAKING, now)

    def turn_ended(self, now: float) -> None:
        self._caller = _Caller(CallerState.AWAITING, now)

    def started(self, response_id: str, now: float) -> None:
        self._response = _Response(ResponseState.ACTIVE, now, response_id)
        self._answered()
        if not self._unconfirmed:
            self.wanted = False

    def ended(self, response_id: str) -> None:
        if self.active == response_id:
            self._response = _Response()

    def succeeded(self) -> None:
        self._failures = 0

    def silence(self, response_id: str) -> None:
        """Nothing of the response is to be heard from now on."""
        self._unheard_of[response_id] = None
        while len(self._unheard_of) > _REMEMBERED:
            self._unheard_of.popitem(last=False)

    def is_silenced(self, response_id: str) -> bool:
        return response_id in self._unheard_of

    def connection_lost(self) -> None:
        """What was being said or asked for is due again on the next connection."""
        if not self.is_idle or self._caller.state is not CallerState.QUIET:
            self.wanted = True
        self._response, self._caller = _Response(), _Caller()
        self._unconfirmed.clear()

    def _answered(self) -> None:
        if self._caller.state is CallerState.AWAITING:
            self._caller = _Caller()

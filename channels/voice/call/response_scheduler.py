"""When the model is asked to speak (V12).

A model speaks by itself after the caller's turn. Everything else, such as answers of tools, has to ask for a
response, and only one can be active: what is asked for too early is refused, and what is asked for twice is
said twice. So a wish for a response is kept until

1. no response is active or asked for, and the caller is not speaking,
2. no tool is running whose answer the response should have,
3. a turn of the caller that has just ended got its own response, which then grants the wish too, if
   everything that the wish was about had reached the model by then.
"""

from __future__ import annotations

from collections import OrderedDict

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


class ResponseScheduler:
    """`now` arguments are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.active: str | None = None
        self.wanted = False
        self.speaking = False
        """Whether the caller is speaking."""
        self._asked_at: float | None = None
        self._turn_ended_at: float | None = None
        self._not_before = 0.0
        self._failures = 0
        self._unconfirmed: set[str] = set()
        self._unheard_of: OrderedDict[str, None] = OrderedDict()

    @property
    def is_asked(self) -> bool:
        return self._asked_at is not None

    @property
    def is_quiet(self) -> bool:
        """Nobody speaks and nobody is about to."""
        return not (self.active or self.wanted or self.speaking or self.is_asked)

    def want(self) -> None:
        """A response is due, which takes into account what was sent before."""
        self.wanted = True

    def sent(self, item_id: str) -> None:
        """A new item is on its way to the model."""
        self._unconfirmed.add(item_id)

    def confirmed(self, item_id: str) -> bool:
        """Whether the item was one that this side has sent."""
        known = item_id in self._unconfirmed
        self._unconfirmed.discard(item_id)
        return known

    def may_ask(self, now: float) -> bool:
        if not self.wanted or self.active is not None or self.is_asked or self.speaking:
            return False
        if now < self._not_before:
            return False
        return self._turn_ended_at is None or now - self._turn_ended_at >= TURN_TAKEN_WITHIN_S

    def asked(self, now: float) -> None:
        """On its way behind all items that were sent, so that it takes them into account."""
        self.wanted = False
        self._asked_at, self._turn_ended_at = now, None
        self._unconfirmed.clear()

    def refused(self, now: float) -> None:
        """Another response was active already: ask again when that one has ended. It may also have been the
        model itself that wanted to answer a turn, and does not try again."""
        self._asked_at = self._turn_ended_at = None
        self.wanted = True
        if self.active is None:
            self._not_before = now + AGAIN_AFTER_S

    def failed(self, now: float) -> None:
        """What was asked for, or began, has come to nothing by the model's fault: try again, not for ever."""
        self._failures += 1
        if self._failures <= MOST_FAILURES:
            self._asked_at = None
            self.wanted = True
            self._not_before = now + AGAIN_AFTER_S

    def is_overdue(self, now: float) -> bool:
        return self._asked_at is not None and now - self._asked_at >= ANSWERED_WITHIN_S

    def is_turn_unanswered(self, now: float) -> bool:
        """The model lets a turn of the caller pass."""
        ended = self._turn_ended_at
        return not self.wanted and ended is not None and now - ended >= TURN_ANSWERED_WITHIN_S

    def turn_ended(self, now: float) -> None:
        self.speaking = False
        self._turn_ended_at = now

    def started(self, response_id: str) -> None:
        self.active = response_id
        self._asked_at = self._turn_ended_at = None
        if not self._unconfirmed:
            self.wanted = False

    def ended(self, response_id: str) -> None:
        if self.active == response_id:
            self.active = None

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
        if self.active is not None or self.is_asked or self.speaking or self._turn_ended_at is not None:
            self.wanted = True
        self.active = self._asked_at = self._turn_ended_at = None
        self.speaking = False
        self._unconfirmed.clear()

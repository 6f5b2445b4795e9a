"""The ports by which the engine's work is counted and traced, and what implements them where nobody looks.

Counters: names and labels are listed where they are exported. Traces are spans, one inside the other, over
processes by their `traceparent`; they are off unless an operator asks for them, and then the wrappers that
make spans are not even installed. Attributes never hold bodies, prompts, keys or anything about a person.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Literal, Protocol

IDS_LOGGED: ContextVar[Mapping[str, str | None]] = ContextVar("ids_logged")
"""`conversation_id` and `contact_id` of the present request: every line that it logs has them. Set at its
start, to nothing, and again when they are known; unset where no request is."""


class Observer(Protocol):
    def count(self, what: str, amount: int = 1, /, **labels: str) -> None: ...

    def warn(self, event: str, /, **details: str) -> None:
        """A line in the operator's log. `details` hold nothing that a person has said or written. One JSON
        line."""
        ...


class Unobserved:
    """Implements `Observer` where nobody counts. Never raises."""

    def count(self, what: str, amount: int = 1, /, **labels: str) -> None:
        return

    def warn(self, event: str, /, **details: str) -> None:
        return


SpanKind = Literal["internal", "server", "client", "consumer"]
Attributes = Mapping[str, str | int | float | bool]
_NOTHING: Attributes = {}


class Tracing(Protocol):
    """`on` is False where nothing is recorded: whoever wraps others for tracing then does not."""

    @property
    def on(self) -> bool: ...

    def span(
        self,
        name: str,
        kind: SpanKind = "internal",
        *,
        parent: str | None = None,
        attributes: Attributes = _NOTHING,
    ) -> AbstractContextManager[None]:
        """What is done within. `parent` is a W3C `traceparent`; without it, the span that is current."""
        ...

    def finished(self, name: str, kind: SpanKind, *, seconds: float, attributes: Attributes) -> None:
        """A span that ends now and began `seconds` ago."""
        ...

    def note(self, attributes: Attributes) -> None:
        """Add to the current span. With the attribute `error.type` it counts as failed."""
        ...

    def traceparent(self) -> str | None:
        """The current span for others to continue; None outside of any."""
        ...


class Untraced:
    """Implements `Tracing` where traces are off. Never raises."""

    on = False

    def span(
        self,
        name: str,
        kind: SpanKind = "internal",
        *,
        parent: str | None = None,
        attributes: Attributes = _NOTHING,
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def finished(self, name: str, kind: SpanKind, *, seconds: float, attributes: Attributes) -> None:
        return

    def note(self, attributes: Attributes) -> None:
        return

    def traceparent(self) -> str | None:
        return None

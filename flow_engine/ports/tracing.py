"""The port by which work is traced: spans, one inside the other, over processes by their `traceparent`.

Traces are off unless an operator asks for them; then the wrappers that make spans are not even installed.
Attributes never hold bodies, prompts, keys or anything about a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

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
    """Implements `Tracing` where traces are off."""

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

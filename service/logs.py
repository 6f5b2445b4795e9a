"""Structured logs: one JSON object a line on standard output, or standard error (F46)."""

import logging
import sys
from contextlib import suppress
from itertools import chain
from typing import Any, BinaryIO, Final

import orjson
import structlog
from structlog.typing import EventDict, ExcInfo

from flow_engine.ports.telemetry import IDS_LOGGED, Tracing


class StandardOutput:
    """Writes to what standard output is at the moment: it may be another one than at the start. One JSON
    object a line, written out at once. What cannot be written, on a full disk or to a reader that has gone,
    is lost: nothing else fails by it."""

    def __init__(self, *_: object) -> None:
        pass

    @staticmethod
    def stream() -> BinaryIO:
        return sys.stdout.buffer

    def msg(self, line: bytes) -> None:
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self.stream().write(line + b"\n")
            self.stream().flush()

    debug = info = warning = error = critical = exception = log = msg


class StandardError(StandardOutput):
    """For commands whose standard output is their answer."""

    @staticmethod
    def stream() -> BinaryIO:
        return sys.stderr.buffer


class _LibraryLines(logging.Handler):
    """Has what libraries log by the standard library, such as a server that cannot read a request, written as
    every other line. Of a message it keeps the first line: asyncio puts values behind it, which may be a
    caller's."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            structlog.get_logger().log(
                min(record.levelno // 10 * 10, logging.CRITICAL),
                record.getMessage().partition("\n")[0],
                logger=record.name,
                **({"exc_info": record.exc_info} if record.exc_info else {}),
            )
        except (TypeError, ValueError):  # a message that does not fit its arguments
            self.handleError(record)


_TRACEBACK: Final = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Frames without their locals: those hold what callers sent."""


def _without_messages(exc_info: ExcInfo) -> list[dict[str, Any]]:
    """Which exceptions, and where they come from: what one says may quote what a caller sent."""
    found = _TRACEBACK(exc_info)
    waiting = [*found]
    while waiting:
        each = waiting.pop()
        waiting.extend(chain.from_iterable(each["exceptions"]))
        for name in ("exc_value", "exc_notes", "syntax_error"):
            del each[name]
    return found


LIBRARY_LINES: Final = _LibraryLines(logging.WARNING)


def configure_logging(
    level: str, tracing: Tracing | None = None, *, to: type[StandardOutput] = StandardOutput
) -> None:
    """Messages are static texts; everything that varies is a field, and no field holds personal data.

    With traces on, a line that is logged within a span carries its `trace_id` and `span_id`. Raises KeyError
    for an unknown level. Each line is one JSON object, times in UTC; so are warnings of libraries, which name
    their `logger`.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda logger, method, event: {**IDS_LOGGED.get({}), **event},
            *((_SpanIds(tracing),) if tracing is not None and tracing.on else ()),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(
                _TRACEBACK if level.casefold() == "debug" else _without_messages
            ),
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=to,
        cache_logger_on_first_use=True,
    )
    logging.getLogger().addHandler(LIBRARY_LINES)  # one that is there is not added again


class _SpanIds:
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        """A `traceparent` is version-trace-span-flags, all in hexadecimal."""
        traceparent = self._tracing.traceparent()
        if traceparent is not None:
            _, event["trace_id"], event["span_id"], _ = traceparent.split("-")
        return event

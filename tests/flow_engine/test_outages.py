"""An outage is told once for each reason that it has, and its end once (F46)."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from flow_engine.errors import CallTheOperator, FlowEngineError, RetryLater
from flow_engine.outages import Outage


def away(reason: str) -> FlowEngineError:
    error = RetryLater("memory_unavailable", "away")
    error.__cause__ = OSError(reason)
    return error


def test_each_reason_is_told_once_and_the_end_once() -> None:  # F46
    with capture_logs() as logs:
        outage = Outage(structlog.get_logger(), "not_done", "done_again")
        outage.ended()
        for error in (away("cut"), away("refused"), away("refused"), CallTheOperator("denied", "no right")):
            outage.met(error)
        outage.ended()
        outage.ended()
        outage.met(away("cut"))
    assert [(line["event"], line["log_level"], line["code"], line.get("reason")) for line in logs] == [
        ("not_done", "warning", "memory_unavailable", "cut"),
        ("not_done", "warning", "memory_unavailable", "refused"),
        ("not_done", "error", "denied", ""),
        ("done_again", "info", "denied", None),
        ("not_done", "warning", "memory_unavailable", "cut"),
    ]

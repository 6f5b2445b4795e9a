"""What is tried over and over while a store is away: said once, and once that it is over."""

from typing import Any

from flow_engine.errors import CallTheOperator, FlowEngineError


class Outage:
    """`log` is a structured logger; `event` says that something cannot be done, with code, detail and the
    driver's reason, `over` that it can again."""

    def __init__(self, log: Any, event: str, over: str) -> None:
        self._log = log
        self._event = event
        self._over = over
        self._met: FlowEngineError | None = None

    def met(self, error: FlowEngineError) -> None:
        before, self._met = self._met, error
        if before is None or (before.detail, before.reason) != (error.detail, error.reason):
            tell = self._log.error if isinstance(error, CallTheOperator) else self._log.warning
            tell(self._event, code=error.code, detail=error.detail, reason=error.reason)

    def ended(self) -> None:
        if self._met is not None:
            self._log.info(self._over, code=self._met.code, detail=self._met.detail)
        self._met = None

"""picows' messages as structured events: what it tells people is of no use to programs as it is."""

from __future__ import annotations

import logging
from typing import Any

import structlog

log: Any = structlog.get_logger("flow_engine.voice")


class PicowsLog:
    """As much of a `logging.Logger` as picows uses. What is below a warning tells addresses of peers and
    the coming and going of sockets, and is left out."""

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.WARNING

    def log(self, level: int, message: str, *args: object) -> None:
        if self.isEnabledFor(level):
            self.warning(message, *args)

    def debug(self, message: str, *args: object) -> None:
        pass

    info = debug

    def warning(self, message: str, *args: object) -> None:
        log.warning("socket_broken", told=message % args)

    error = warning

    def exception(self, message: str, *args: object) -> None:
        log.error("socket_bug", told=message % args, exc_info=True)

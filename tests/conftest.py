"""Rules for every test: no network but loopback, one async backend."""

from __future__ import annotations

import gc
import ipaddress
import logging
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import settings

from service.logs import LIBRARY_LINES
from tests.redis_fixture import redis_cluster, redis_server, start_redis
from tests.timing import PatientLoop

__all__ = ["redis_cluster", "redis_server", "start_redis"]


# How long an example takes says more of the machine than of the code.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": PatientLoop}


def _is_loopback(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # unix sockets stay on the machine
    host = str(address[0])
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def network_blocked_except_loopback() -> Iterator[None]:
    """A test that reaches for the outside fails at once, and says where it wanted to go."""
    real_connect, real_connect_ex = socket.socket.connect, socket.socket.connect_ex

    def connect(self: socket.socket, address: Any) -> None:
        if not _is_loopback(address):
            raise PermissionError(f"tests stay on this machine, but one connected to {address!r}")
        real_connect(self, address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        if not _is_loopback(address):
            raise PermissionError(f"tests stay on this machine, but one connected to {address!r}")
        return real_connect_ex(self, address)

    socket.socket.connect, socket.socket.connect_ex = connect, connect_ex  # type: ignore[method-assign]
    yield
    socket.socket.connect, socket.socket.connect_ex = real_connect, real_connect_ex  # type: ignore[method-assign]


@pytest.fixture
def collects_forgotten_sockets() -> Iterator[None]:
    """Drivers forget a socket that is given up while it connects. The warning is due in the test that made
    it, which ignores it, and not by chance in one that runs later."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def loggers_forget_what_a_program_configured() -> Iterator[None]:
    """A program that runs inside a test sets level and processors for its process, and each logger keeps what
    it had at its first line: the next test would log by that, past its own `capture_logs`."""
    yield
    logging.getLogger().removeHandler(LIBRARY_LINES)
    if structlog.is_configured():
        structlog.reset_defaults()
        for module in tuple(sys.modules.values()):
            for name in ("log", "_log"):
                if "bind" in (kept := getattr(vars(module).get(name), "__dict__", {})):
                    del kept["bind"]

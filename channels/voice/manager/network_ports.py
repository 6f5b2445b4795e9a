"""Which agent listens where. A port belongs to its agent for good, also while the agent is not listed:
Twilio and proxies know agents by their ports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from flow_engine.errors import CallTheOperator

LAST_PORT = 65_535


def given_port(agent_id: str, ports: Mapping[str, int], first: int, is_free: Callable[[int], bool]) -> int:
    """The agent's own port if it is free, else the lowest from `first` on that is free and nobody's.

    Raises CallTheOperator `no_port_left`.
    """
    own = ports.get(agent_id)
    if own is not None and is_free(own):
        return own
    taken = set(ports.values())
    for port in range(first, LAST_PORT + 1):
        if port not in taken and is_free(port):
            return port
    raise CallTheOperator("no_port_left", f"there is no free port from {first} to {LAST_PORT}")


def is_free(port: int) -> bool:
    """Whether a program could listen on it, on all addresses."""
    with socket.socket() as probe:
        # Connections of an earlier program that are still being closed do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True

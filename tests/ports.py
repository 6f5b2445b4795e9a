"""Ports for the servers of tests: below those of outgoing connections, and no two workers' the same."""

from __future__ import annotations

import itertools
import os
import random
import socket

_EACH = 1_200
_REFUSED_BY_BROWSERS = 10_080
"""The only port of these that no page is loaded from: https://fetch.spec.whatwg.org/#port-blocking"""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_START = random.randrange(_EACH)  # another run on this machine begins elsewhere
_OFFSETS = itertools.cycle((_START + step) % _EACH for step in range(_EACH))


def free_port() -> int:
    """None that was given lately, as its server may still be closing. 10,000 above it is left free too."""
    for offset in _OFFSETS:
        port = 10_000 + _WORKER * _EACH + offset
        if port == _REFUSED_BY_BROWSERS:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the offsets never end")

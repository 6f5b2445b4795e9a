"""What a request may cost, in loops of a fixed piece of work that is timed in the same run: so budgets hold
on other machines. `budgets.json` has them by scene and request; `benchmarks --set-budgets` writes it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from benchmarks.results import Rate

FILE = Path(__file__).with_name("budgets.json")
_LOOPS = 400
_ROUNDS = 3


def read_budgets() -> Mapping[str, float]:
    """Loops by the label of a rate."""
    return orjson.loads(FILE.read_bytes())


def write_budgets(rates: Iterable[Rate]) -> None:
    found = {rate.label: round(rate.loops, 2) for rate in rates}
    FILE.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def loop_us() -> float:
    """Microseconds of CPU of one loop, the least of three rounds, on the core that this process is pinned to.

    A loop is some of what requests are made of: JSON read and written, names looked up in dictionaries, texts
    put together, and two system calls with a kilobyte.
    """
    document = orjson.dumps(
        {f"name {n}": {"id": n, "value": "some text", "list": [1, 2, 3]} for n in range(16)}
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return min(_round_s(document, ours, theirs) for _ in range(_ROUNDS)) / _LOOPS * 1e6


def _round_s(document: bytes, ours: socket.socket, theirs: socket.socket) -> float:
    began = time.process_time()
    for _ in range(_LOOPS):
        read: dict[str, dict[str, Any]] = orjson.loads(document)
        named = {entry["id"]: name for name, entry in read.items()}
        text = "\n".join(
            [f"| {named[number]} | {read[named[number]]['value']} |" for number in sorted(named)]
        )
        ours.sendall(text.encode()[:1024])
        theirs.recv(1024)
        orjson.dumps(read)
    return time.process_time() - began

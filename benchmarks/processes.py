"""What the kernel says of a process: CPU time, resident memory, and on which core it may run (Linux)."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """`service` has its core to itself where there are two; the client and Redis share the other."""

    service: int
    rest: int

    @classmethod
    def choose(cls) -> Cores:
        allowed = sorted(os.sched_getaffinity(0))
        return cls(allowed[0], allowed[-1])

    def __str__(self) -> str:
        if self.service == self.rest:
            return f"service, client and Redis all on core {self.service}: rates are too low, CPU times hold"
        return f"service on core {self.service}; load client and Redis on core {self.rest}"


@contextmanager
def pinned(core: int) -> Generator[None]:
    """This process, and what it starts meanwhile, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def least_s(runs: Iterable[Callable[[], object]]) -> float:
    """Seconds of this process's CPU of the quickest run; what it takes to make one is not counted."""
    best = float("inf")
    for run in runs:
        gc.collect()
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    return best


def cpu_seconds(pid: int) -> float:
    """CPU time of every live thread, its children's too, to the nanosecond where the kernel keeps it so."""
    total = 0.0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            total += int((thread / "schedstat").read_text().split()[0]) / 1e9
            total += sum(cpu_seconds(int(child)) for child in (thread / "children").read_text().split())
    return total


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has ended")

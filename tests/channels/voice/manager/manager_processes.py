"""Real processes for the manager's tests: small, ended by their own time limit, and counted afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

LIFE_S = 60
"""No process of a test lives longer than this, whatever becomes of the test."""


def wait_until(holds: Callable[[], bool], what: str, within_s: float = 20) -> None:
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            pytest.fail(f"not within {within_s} s: {what}")
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether nothing runs under that id. A zombie runs no more."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def family_of(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], list[int]]]:
    """All descendants ever seen of `process`. What is left at the end is ended, by its id and only while it
    is the same process."""
    seen: dict[int, psutil.Process] = {}

    def look() -> list[int]:
        with suppress(psutil.NoSuchProcess):
            seen.update({each.pid: each for each in psutil.Process(process.pid).children(recursive=True)})
        return [pid for pid, each in seen.items() if each.is_running() and not gone(pid)]

    try:
        yield look
    finally:
        look()
        for each in seen.values():
            with suppress(psutil.NoSuchProcess):
                if each.is_running():
                    each.kill()
        if process.poll() is None:
            process.kill()
        process.wait()


def script(path: Path, *lines: str) -> list[str]:
    """A Python program that ends itself after a minute at most."""
    path.write_text(
        "\n".join(("import os, signal, subprocess, sys, time", f"signal.alarm({LIFE_S})", *lines, ""))
    )
    return [sys.executable, "-I", "-S", str(path)]


def read_pid(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} is written")
    return int(path.read_text())


def note_pid(path: Path) -> str:
    """A line of a script that notes its own process id."""
    return f"open({str(path)!r}, 'w').write(f'{{os.getpid()}}\\n')"


def alive(pid: int) -> bool:
    return not gone(pid)

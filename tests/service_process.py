"""The service as its users start it: a process of its own, on a free port, that ends on SIGINT."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[1]
READY_WITHIN_S = 240


@contextmanager
def running_service(
    data_dir: Path, *command: str, output: Path = Path(os.devnull), **environment: str
) -> Iterator[str]:
    """Yields the base URL; `command` is `serve` unless another one is named. Fails when the service does not
    start, or does not end in order."""
    port = free_port()
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", *(command or ("serve",)), "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, "FLOW_ENGINE_DATA_DIR": str(data_dir), **environment},
            stdout=sink,
            stderr=sink,
        )
    base = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(base, process)
        yield base
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, "SIGINT ends the service cleanly"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_until_ready(base: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{base}/health/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the service did not become ready")

"""A server of MongoDB's wire protocol, for tests that keep records in one."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class WireServer:
    """A running server of MongoDB's wire protocol. `stop` ends that process and no other."""

    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)


def start_wire_server(folder: Path) -> WireServer:
    """A server with nothing in it; its log and output lie in `folder`. Raises RuntimeError."""
    port = free_port()
    command = [sys.executable, "-m", "nx_27017.nx_27017", "--data-dir", "memory", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--log-file", str(folder / "log"), "--pid-file", str(folder / "pid")]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return WireServer(f"mongodb://127.0.0.1:{port}", process)
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=10)
    raise RuntimeError(f"no server on port {port}: {(folder / 'output').read_text()}")

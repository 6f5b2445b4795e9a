"""A voice agent as its users start it: a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from channels.voice.testing.sockets import eventually
from tests.channels.voice.business_server import BusinessServer
from tests.ports import free_port
from tests.service_process import ROOT

READY_WITHIN_S = 60.0


@dataclass
class VoiceProcess:
    process: asyncio.subprocess.Process
    port: int
    home: Path

    @property
    def line_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/media-stream"

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, within 30 seconds."""
        return await asyncio.wait_for(self.process.wait(), 30)

    async def health(self) -> dict[str, Any]:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"http://127.0.0.1:{self.port}/healthz")).json()

    async def is_draining(self) -> bool:
        return bool((await self.health())["draining"])

    def children(self) -> list[int]:
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if parent == self.process.pid:
                    found.append(int(entry.name))
        return found

    def left_behind(self) -> list[str]:
        """Files in its home and its directory for temporary files, but for the config."""
        return sorted(
            str(path) for path in self.home.rglob("*") if path.is_file() and path.name != "config.json"
        )


@asynccontextmanager
async def voice_process(
    config: dict[str, Any],
    business: BusinessServer,
    realtime_url: str,
    home: Path,
    port: int | None = None,
    **environment: str,
) -> AsyncGenerator[VoiceProcess]:
    """Ready when given. Killed afterwards, if it is still there."""
    port = port or free_port()
    (home / "config.json").write_text(json.dumps(config))
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLOW_ENGINE", "OPENAI"))
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "service.cli",
        "voice",
        "serve",
        f"--config={home / 'config.json'}",
        f"--port={port}",
        f"--base-url={business.url}",
        cwd=home,
        env={
            **given,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(home),
            "TMPDIR": str(home),
            "OPENAI_API_KEY": "sk-test",
            "FLOW_ENGINE_REALTIME_URL": realtime_url,
            **environment,
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    served = VoiceProcess(process, port, home)
    try:
        await eventually(lambda: process.returncode is not None or _listens(port), READY_WITHIN_S)
        assert process.returncode is None, "the agent does not start"
        yield served
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _listens(port: int) -> bool:
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return any(line.split()[1] == wanted and line.split()[3] == "0A" for line in lines[1:])

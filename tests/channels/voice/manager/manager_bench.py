"""A manager with real processes: fake agents and bridges, a scripted list, health by real loopback."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.voice.manager.configs import ConfigFiles
from channels.voice.manager.directory import Directory, locked_directory
from channels.voice.manager.fleet import Limits
from channels.voice.manager.manager import Manager, Pace
from channels.voice.manager.processes import CommandLines, Programs
from channels.voice.manager.roster import Roster, Source
from flow_engine.ports.outbound import OutboundFailed, OutboundReply
from tests.ports import free_port

FAKE_AGENT = Path(__file__).with_name("fake_manager_agent.py")
API = "https://business.example"
LIMITS = Limits(
    start_s=20, drain_s=20, settle_s=0, stop_s=3, stable_s=60, failures=3, backoff_s=0.2, backoff_max_s=0.4
)
TEMPLATE: dict[str, Any] = {
    "version": "2.0",
    "agent": {"id": "${RESTAURANT_ID}", "name": "${RESTAURANT_NAME}", "type": "restaurant"},
    "base_url": "${NEXT_API_URL}",
    "session": {"mode": "inline", "instructions": "Take orders.", "tools": []},
}


def entry(agent_id: str, **more: object) -> dict[str, object]:
    return {"id": agent_id, "name": f"Chez {agent_id}", **more}


def sip_entry(agent_id: str, password: str = "s3cret-of-sip") -> dict[str, object]:
    account = {"sipDomain": "sip.example", "sipUsername": f"user-{agent_id}", "sipPassword": password}
    return entry(agent_id, sipBridge=True, **account)


class ListedAgents:
    """The business API: answers with whatever the test has put there."""

    def __init__(self) -> None:
        self.answer: object = []
        self.asked = 0
        self.headers: Mapping[str, str] = {}

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        assert (method, url) == ("GET", f"{API}/api/sip/agents")
        self.asked += 1
        self.headers = dict(headers or {})
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, OutboundReply):
            return self.answer
        return OutboundReply(200, orjson.dumps(self.answer))

    def breaks(self) -> None:
        self.answer = OutboundFailed("the exchange with 'business.example' broke off")


@dataclass
class Bench:
    home: Path
    first_port: int = field(default_factory=free_port)
    listed: ListedAgents = field(default_factory=ListedAgents)
    agent_command: tuple[str, ...] = (sys.executable, "-I", "-S", str(FAKE_AGENT))
    bridge: tuple[str, ...] = ()
    limits: Limits = LIMITS
    api: str = API
    """Of the configs; the list is asked for at `API`."""
    public_url: str | None = None

    def __post_init__(self) -> None:
        for name in ("templates", "fakes"):
            (self.home / name).mkdir(exist_ok=True)
        self.write_template(TEMPLATE)

    @property
    def state(self) -> Path:
        return self.home / "state"

    def write_template(self, template: object, kind: str = "restaurant") -> None:
        (self.home / "templates" / f"{kind}.json").write_bytes(orjson.dumps(template))

    def mood(self, agent_id: str, words: str) -> None:
        (self.home / "fakes" / f"{agent_id}.mood").write_text(words)

    def log(self, agent_id: str) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.home / "fakes" / f"{agent_id}.log").read_text().splitlines()
        return []

    def starts(self, agent_id: str) -> list[int]:
        """The process ids under which the agent was started, in order."""
        return [int(line.split()[1]) for line in self.log(agent_id) if line.startswith("started")]

    def status(self) -> dict[str, Any]:
        return orjson.loads((self.state / "status.json").read_bytes())

    def agent(self, agent_id: str) -> dict[str, Any]:
        with suppress(FileNotFoundError):
            for told in self.status()["agents"]:
                if told["id"] == agent_id:
                    return told
        return {"state": None, "bridge": None}

    def state_of(self, agent_id: str) -> str | None:
        return self.agent(agent_id)["state"]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "FAKE_AGENTS": str(self.home / "fakes"), "SIP_PASSWORD": "of the operator's"}

    @asynccontextmanager
    async def running(self, port_is_free: Callable[[int], bool] | None = None) -> AsyncGenerator[Manager]:
        """Stops the manager at the end if the test has not, and sees that nothing is left."""
        before = {each.pid for each in psutil.Process().children(recursive=True)}
        local = GuardedClient(AllowList.parse("127.0.0.1"))
        with locked_directory(self.state, 0) as directory:
            manager = self._manager(directory, local, port_is_free)
            running = asyncio.create_task(manager.run())
            try:
                yield manager
                manager.stop()
                await asyncio.wait_for(running, 40)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await local.aclose()
        after = {each.pid for each in psutil.Process().children(recursive=True)}
        assert after <= before, "processes are left"

    def _manager(
        self, directory: Directory, local: GuardedClient, port_is_free: Callable[[int], bool] | None
    ) -> Manager:
        files = ConfigFiles(self.home / "templates", directory.configs, self.api, ())
        free = {} if port_is_free is None else {"port_is_free": port_is_free}
        roster = Roster(
            Source(self.listed, API),
            files,
            directory,
            first_port=self.first_port,
            bridges=bool(self.bridge),
            public_url=self.public_url,
            **free,
        )
        commands = CommandLines(self.agent_command, self.bridge)
        programs = Programs(commands, self.environment(), files.path, directory.lock)
        pace = Pace(refresh_s=300, health_s=0.1, limits=self.limits)
        return Manager(roster, programs, local, directory, pace, wall=lambda: datetime.now(UTC))


async def until(holds: Callable[[], object], what: str, within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"not within {within_s} s: {what}")
        await asyncio.sleep(0.02)

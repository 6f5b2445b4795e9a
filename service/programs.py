"""Where the service finds the voice manager of its machine: the directory that the manager writes into."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from api.programs import ManagerStatus, Scraped, VoiceSource
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused
from service.settings import Settings

SCRAPE_WITHIN_S = 2.0
AGENTS_AT_ONCE = 16
STATUS_BYTES = 16 * 1024 * 1024


def voice_source(settings: Settings) -> VoiceSource:
    """Where no directory is named, that of a manager with the same data directory; but nowhere with keys:
    agents are of the whole installation, and each tenant would see those of all."""
    keyless = settings.data_dir / "voice" if settings.api_keys_file is None else None
    directory = settings.voice_directory or keyless

    async def status() -> ManagerStatus | str:
        if directory is None:
            return "FLOW_ENGINE_VOICE_DIRECTORY does not name the directory of a voice manager"
        return await asyncio.to_thread(manager_status, directory)

    return VoiceSource(status, scraped)


def manager_status(directory: Path) -> ManagerStatus | str:
    """What the manager that runs on this directory has written last, else why there is none. Never raises."""
    try:
        with (directory / "status.json").open("rb") as file:
            text = file.read(STATUS_BYTES)
    except OSError:
        return (
            "no voice manager has run on the directory that FLOW_ENGINE_VOICE_DIRECTORY names "
            "(`flow-engine voice manage`)"
        )
    try:
        status = ManagerStatus.model_validate_json(text)
    except ValidationError:
        return "the status that the voice manager has written cannot be read by this release"
    return (
        status if _runs(directory) else f"the voice manager has ended; it wrote last at {status.written_at}"
    )


def _runs(directory: Path) -> bool:
    """Whether the process that holds the directory is alive."""
    try:
        os.kill(int((directory / "manager.lock").read_text("ascii")), 0)
    except PermissionError:  # of another user
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


async def scraped(ports: Sequence[int]) -> Sequence[Scraped | None]:
    """What the agents on these ports of this machine tell, within `SCRAPE_WITHIN_S` seconds a request; None
    for one that does not answer. Never raises."""
    client, room = GuardedClient(AllowList.parse("127.0.0.1")), asyncio.Semaphore(AGENTS_AT_ONCE)

    async def told(port: int, what: str) -> bytes | None:
        try:
            reply = await client.request("GET", f"http://127.0.0.1:{port}/{what}", timeout_s=SCRAPE_WITHIN_S)
        except (OutboundFailed, OutboundRefused):
            return None
        return reply.body if reply.status == 200 else None

    async def one(port: int) -> Scraped | None:
        async with room:
            metrics = await told(port, "metrics")
            if metrics is None:
                return None
            return Scraped(metrics.decode(errors="replace"), await told(port, "calls") or b"")

    try:
        return await asyncio.gather(*map(one, ports))
    finally:
        await client.aclose()

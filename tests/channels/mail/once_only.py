"""The proof that a mail is answered once, whatever happens: `python -m tests.channels.mail.once_only`.

Two processes work on one mailbox while they are killed at random moments, and right after the SMTP server has
taken a message and before it says so; while the IMAP connections are cut, and the mailbox is numbered anew.
Then every mail has one run, none has two replies, and none is without a reply or a draft.

With `--naive` the agents forget what they were about to send: the same checks have to fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiosmtpd.smtp import Envelope, Session

from adapters.models.fake_http import Received
from adapters.models.fake_openai import FakeOpenAI, WireStep
from adapters.models.scripted import CallsTools, Says
from channels.mail.message import parse_mail
from flow_engine.ports.models import ToolCall
from tests.channels.mail.dovecot import PASSWORD, Dovecot, running_dovecot
from tests.channels.mail.smtp_server import SmtpServer, running_smtp
from tests.channels.mail.world import World, config, mail
from tests.ports import free_port
from tests.proof.link import Link

ROOT = Path(__file__).parents[3]
USER = "pharmacy@example.org"
LEASE_S = 1.5
READY_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens. Of the kills `kills_after_smtp` come right after a message was taken."""

    mails: int = 200
    kills: int = 20
    kills_after_smtp: int = 6
    cuts: int = 10
    seed: int = 1
    naive: bool = False
    within_s: float = 420.0


@dataclass
class Found:
    """What is there in the end. `replies` counts messages that the SMTP server took, by the mail that they
    answer; `drafts` and `runs` count by mail too."""

    replies: Counter[str]
    drafts: Counter[str]
    runs: Counter[str]
    statuses: Counter[str]
    kills: int
    seconds: float

    def broken(self, plan: Plan) -> list[str]:
        """What does not hold; nothing where all does."""
        mails = [f"<m{number}@example.com>" for number in range(plan.mails)]
        checks = {
            "a mail has no run, or more than one": [each for each in mails if self.runs[each] != 1],
            "a run is of no mail": [each for each in self.runs if each not in mails],
            "a mail was answered twice": [each for each in mails if self.replies[each] > 1],
            "a mail has neither a reply nor a draft": [
                each for each in mails if not self.replies[each] + self.drafts[each]
            ],
            "a run did not complete": [status for status in self.statuses if status != "completed"],
            "there were too few kills": [] if self.kills >= plan.kills else [str(self.kills)],
        }
        return [f"{what}: {', '.join(found[:5])} ({len(found)})" for what, found in checks.items() if found]


@dataclass
class KillingSmtp(SmtpServer):
    """Kills both agents after a message was taken and before the reply, as often as is still to do."""

    fleet: Fleet | None = None
    kills_left: int = 0
    every: int = 1

    async def handle_DATA(self, server: Any, session: Session, envelope: Envelope) -> str:
        reply = await super().handle_DATA(server, session, envelope)
        if self.kills_left and self.fleet is not None and len(self.sent) % self.every == 0:
            self.kills_left -= 1
            for pid in self.fleet.alive:
                self.fleet.kill(pid)
        return reply


@dataclass
class Fleet:
    """The agents: processes that are started again when they are gone. `nursery` forks them."""

    path: Path
    nursery: subprocess.Popen[bytes]
    agents: list[int] = field(default_factory=list)
    kills: int = 0

    def start(self) -> None:
        arguments = ["mail", "serve", "--config", str(self.path)]
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(orjson.dumps(arguments) + b"\n")
        self.nursery.stdin.flush()
        self.agents.append(int(self.nursery.stdout.readline()))

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.agents if Path(f"/proc/{pid}/cmdline").exists()]

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1

    def revive(self) -> None:
        alive = self.alive
        gone = len(self.agents) - len(alive)
        self.agents = alive
        for _ in range(gone):
            self.start()

    def end(self) -> None:
        for pid in self.alive:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.close()
        self.nursery.stdout.close()
        self.nursery.wait(timeout=20)


def replying(received: Received) -> WireStep:
    """A reply to whoever wrote, then a word to end with."""
    if received.body["messages"][-1]["role"] == "tool":
        return Says("Answered.")
    arguments = {"to": "jana@example.com", "subject": "Re: Ibuprofen", "body": "Yes, we have."}
    return CallsTools([ToolCall("c1", "send_reply", arguments)])


@asynccontextmanager
async def _fleet(
    plan: Plan, folder: Path, server: Dovecot, smtp: KillingSmtp
) -> AsyncGenerator[tuple[Fleet, Link]]:
    async with Link(free_port(), server.port) as link, FakeOpenAI(replying).running() as model:
        world = World(server, USER, folder)
        environment = {
            **os.environ,
            "MAIL_PASSWORD": PASSWORD,
            "FLOW_ENGINE_DATA_DIR": str(folder),
            "FLOW_ENGINE_LLM_MODEL": "openai:scripted",
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "sk-none",
            "FLOW_ENGINE_JOB_LEASE_S": str(LEASE_S),
            "FLOW_ENGINE_LLM_CALLS_PER_MINUTE": "100000",
        }
        path = world.write(config(link.port, USER, smtp.port))
        command = [sys.executable, "-m", "tests.channels.mail.nursery", *(["--naive"] if plan.naive else [])]
        with (folder / "agents.log").open("ab") as output:
            nursery = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
            )
        fleet = smtp.fleet = Fleet(path, nursery)
        try:
            await asyncio.to_thread(fleet.start)
            await _begun(folder)
            fleet.start()
            yield fleet, link
        finally:
            await asyncio.to_thread(fleet.end)


async def _begun(folder: Path) -> None:
    """Until it is stored where the mailbox begins."""
    async with asyncio.timeout(READY_WITHIN_S):
        while not _select(folder, "SELECT 1 FROM mail_state WHERE id LIKE 'mailbox:%'"):
            await asyncio.sleep(0.1)


def _select(folder: Path, statement: str) -> Sequence[tuple[Any, ...]]:
    """Nothing while the database or the table is not there."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(folder / "flows.sqlite3", timeout=10)) as reader,
    ):
        return reader.execute(statement).fetchall()
    return ()


async def _disturb(plan: Plan, fleet: Fleet, link: Link, server: Dovecot, smtp: KillingSmtp) -> None:
    """Deliver everything, with kills and cuts in between and one renumbering in the middle."""
    chance = random.Random(plan.seed)
    smtp.kills_left = plan.kills_after_smtp
    smtp.every = max(plan.mails // (2 * plan.kills_after_smtp + 1), 1)
    random_kills = plan.kills - plan.kills_after_smtp
    steps = max(random_kills, plan.cuts, 1)
    numbers = list(range(plan.mails))
    for step in range(steps):
        share = numbers[step * plan.mails // steps : (step + 1) * plan.mails // steps]
        await asyncio.to_thread(server.deliver, USER, *(mail(number) for number in share))
        await asyncio.sleep(chance.uniform(0.1, 1.0))
        if step < plan.cuts:
            link.cut_all()
        if step < random_kills:
            alive = fleet.alive
            if alive:
                fleet.kill(chance.choice(alive))
        if step == steps // 2:
            link.hold()
            link.cut_all()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.renumber, USER)
            link.release()
        fleet.revive()
        await asyncio.sleep(chance.uniform(0.5, 3.0))


async def _settled(plan: Plan, folder: Path, fleet: Fleet) -> None:
    """Until no run is under way, or the time is up; what was not killed yet is killed meanwhile."""
    deadline = time.monotonic() + plan.within_s
    while time.monotonic() < deadline:
        fleet.revive()
        ((total, open_),) = _select(
            folder,
            "SELECT count(*), coalesce(sum(status IN ('queued', 'running')), 0) FROM agent_runs",
        ) or [(0, 1)]
        if total >= plan.mails and not open_:
            return
        await asyncio.sleep(0.3)


async def prove(plan: Plan, folder: Path) -> Found:
    """Run the plan with a database in `folder`, which exists."""
    began = time.monotonic()
    with running_dovecot() as server, running_smtp(server=KillingSmtp(free_port())) as smtp:
        assert isinstance(smtp, KillingSmtp)
        async with _fleet(plan, folder, server, smtp) as (fleet, link):
            await _disturb(plan, fleet, link, server, smtp)
            await _settled(plan, folder, fleet)
            while fleet.kills < plan.kills:  # the mails were done too early: kill idle ones
                fleet.revive()
                fleet.kill(fleet.alive[0])
                await asyncio.sleep(0.2)
            await _settled(plan, folder, fleet)
        drafts = [parse_mail(raw) for raw in server.messages(USER, "Drafts")]
        return Found(
            replies=Counter(parse_mail(raw).in_reply_to[0] for raw in smtp.contents),
            drafts=Counter(draft.in_reply_to[0] for draft in drafts),
            runs=Counter(row[0] for row in _select(folder, "SELECT message_id FROM agent_runs")),
            statuses=Counter(
                row[0]
                for row in _select(folder, "SELECT status || coalesce(': ' || error, '') FROM agent_runs")
            ),
            kills=fleet.kills,
            seconds=time.monotonic() - began,
        )


def main() -> int:
    """0 where everything holds; with --naive where it does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("mails", "kills", "kills_after_smtp", "cuts", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Plan(), name))
    parser.add_argument("--naive", action="store_true")
    plan = Plan(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="flow-engine-once-") as folder:
        found = asyncio.run(prove(plan, Path(folder)))
    broken = found.broken(plan)
    print(
        f"{plan.mails} mails, 2 processes, {found.kills} kills ({plan.kills_after_smtp} between SMTP and "
        f"its record), {plan.cuts} cuts, 1 new UIDVALIDITY: {sum(found.runs.values())} runs, "
        f"{sum(found.replies.values())} replies, {sum(found.drafts.values())} drafts in doubt, "
        f"{found.seconds:.0f} s"
    )
    for each in broken:
        print(f"BROKEN: {each}")
    print("holds" if not broken else "does not hold")
    return int(bool(broken) != plan.naive)


if __name__ == "__main__":
    sys.exit(main())

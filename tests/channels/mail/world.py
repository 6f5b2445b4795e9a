"""A mail agent with everything around it on loopback: Dovecot, SMTP, a scripted model, a database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import orjson

from adapters.models.scripted import ScriptedModel, Step
from channels.mail.loading import load_config
from channels.mail.message import ParsedMail, parse_mail
from flow_engine.ports.models import LLMRequest
from flow_engine.use_cases.agent_runs import Row
from service.mail_serve import MailService, mail_service
from service.settings import Settings
from tests.channels.mail.dovecot import PASSWORD, Dovecot

WITHIN_S = 40.0

Script = Sequence[Step] | Callable[[LLMRequest], Step]


def mail(
    number: object = 1,
    *,
    sender: str = "jana@example.com",
    subject: str = "Ibuprofen",
    body: str = "Have you any?",
    headers: Sequence[str] = (),
) -> bytes:
    """One mail to the pharmacy, with the Message-ID `<m{number}@example.com>`."""
    lines = [
        *headers,
        f"From: Jana <{sender}>",
        "To: info@example.org",
        f"Subject: {subject} {number}",
        f"Message-ID: <m{number}@example.com>",
        "Date: Mon, 04 May 2026 09:00:00 +0200",
        "Content-Type: text/plain; charset=utf-8",
        "",
        f"{body} {number}",
        "",
    ]
    return "\r\n".join(lines).encode()


def config(
    imap_port: int, user: str, smtp_port: int | None = None, *, name: str = "pharmacy", **changes: Any
) -> dict[str, Any]:
    """Every mail goes to an agent that may send, draft and escalate; `changes` are top-level keys."""
    imap = {"host": "localhost", "port": imap_port, "tls": "none", "user": user, "poll_s": 2.0}
    box: dict[str, Any] = {
        "name": name,
        "address": "info@example.org",
        "imap": {**imap, "password_env": "MAIL_PASSWORD"},
    }
    if smtp_port is not None:
        box["smtp"] = {"host": "localhost", "port": smtp_port, "tls": "none"}
    profile = {
        "system_prompt_file": "prompt.txt",
        "tools": ["send_reply", "create_draft", "escalate", "search_thread"],
    }
    rule = {
        "name": "everything",
        "match": {"all": True},
        "route": "agent",
        "profile": "pharmacy",
        "trust": "any",
    }
    return {
        "mailbox": box,
        "routing": {"rules": [rule]},
        "agent": {"profiles": {"pharmacy": profile}},
        "limits": {"replies_per_correspondent": 1000, "replies_per_thread": 1000},
        **changes,
    }


@dataclass
class World:
    """`folder` holds the config and the database of one installation."""

    dovecot: Dovecot
    user: str
    folder: Path

    def write(self, document: Mapping[str, Any]) -> Path:
        """The config file, JSON as YAML, beside its prompt."""
        (self.folder / "prompt.txt").write_text("You work for a pharmacy.")
        path = self.folder / "mail.yaml"
        path.write_bytes(orjson.dumps(document))
        return path

    @asynccontextmanager
    async def serving(
        self, path: Path, script: Script, *, since: date | None = None, lease_s: float = 1.0
    ) -> AsyncGenerator[MailService]:
        """An agent in this process that is ready; it ends in order."""
        settings = Settings(data_dir=self.folder, job_lease_s=lease_s)
        model, stopping = ScriptedModel(script), asyncio.Event()
        async with mail_service(settings, load_config(path), since=since, model=model) as service:
            running = asyncio.create_task(service.run(stopping))
            try:
                await until(
                    lambda: all(intake.problem is None for intake in service.intakes) or running.done()
                )
                yield service
            finally:
                stopping.set()
                await running

    def sent(self) -> list[ParsedMail]:
        return [parse_mail(raw) for raw in self.dovecot.messages(self.user, "Sent")]

    def drafts(self) -> list[ParsedMail]:
        return [parse_mail(raw) for raw in self.dovecot.messages(self.user, "Drafts")]

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        """What somebody with SQL sees of the audit."""
        with closing(sqlite3.connect(self.folder / "flows.sqlite3", timeout=10)) as reader:
            return reader.execute(statement).fetchall()


async def until(holds: Callable[[], Any], within_s: float = WITHIN_S) -> None:
    """Looks again and again; the condition may be a coroutine function."""
    async with asyncio.timeout(within_s):
        while True:
            found = holds()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0.05)


async def ended(service: MailService, number: int, within_s: float = WITHIN_S) -> Sequence[Row]:
    """All runs, once there are so many and each has ended or waits."""

    async def all_there() -> bool:
        rows = await service.runs.rows("default")
        return len(rows) >= number and all(row["status"] not in ("queued", "running") for row in rows)

    await until(all_there, within_s)
    return await service.runs.rows("default")


def environment(monkeypatch: Any) -> None:
    """The secrets that the config names."""
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)

"""How many mails a second an agent takes in, works on and stores, on one core, without a model's time.

`python -m benchmarks.mail_serve [--mails N]`: a real Dovecot and SMTP server on loopback, the database on
disk, a scripted model that answers at once. Two paths: mails that a machine sent, which get a keyword and no
model call, and mails that an agent answers (two model calls, one tool, one delivery, one copy in Sent).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from adapters.models.scripted import CallsTools, Says, Step
from flow_engine.ports.models import LLMRequest, ToolCall
from service.logs import configure_logging
from tests.channels.mail.dovecot import PASSWORD, Dovecot, running_dovecot
from tests.channels.mail.smtp_server import running_smtp
from tests.channels.mail.world import World, config, ended, mail


def _replying(request: LLMRequest) -> Step:
    if request.messages[-1].role == "tool":
        return Says("Answered.")
    arguments = {"to": "jana@example.com", "subject": "Re: Ibuprofen", "body": "Yes, we have."}
    return CallsTools([ToolCall("c1", "send_reply", arguments)])


async def _measure(server: Dovecot, smtp_port: int, what: str, mails: list[bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="flow-engine-bench-") as folder:
        world = World(server, f"{what}@example.org", Path(folder))
        path = world.write(config(server.port, world.user, smtp_port))
        async with world.serving(path, _replying) as service:
            began, cpu = time.perf_counter(), time.process_time()
            server.deliver(world.user, *mails)
            await ended(service, len(mails), within_s=600)
            wall, spent = time.perf_counter() - began, time.process_time() - cpu
        tokens = world.select(
            "SELECT coalesce(sum(json_extract(record, '$.input_tokens')), 0) FROM llm_calls"
        )
    print(
        f"{what:10} {len(mails)} mails: {len(mails) / wall:.0f} a second on the clock, "
        f"{len(mails) / spent:.0f} a second of one core, {tokens[0][0] / len(mails):.0f} input tokens a mail"
    )


async def _run(number: int) -> None:
    with running_dovecot() as server, running_smtp() as smtp:
        robots = [mail(n, headers=["Auto-Submitted: auto-generated"]) for n in range(number)]
        await _measure(server, smtp.port, "automatic", robots)
        await _measure(server, smtp.port, "answered", [mail(n) for n in range(number)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mails", type=int, default=200)
    os.environ["MAIL_PASSWORD"] = PASSWORD
    configure_logging("error")
    asyncio.run(_run(parser.parse_args().mails))


if __name__ == "__main__":
    main()

"""`flow-engine jobs`: look at the background jobs that were given up, and have them done after all."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Column, Table

from service import late
from service.settings import Settings, read_settings

commands = typer.Typer(no_args_is_help=True, help="Background jobs that were given up: list, replay.")


@commands.command("dead")
def dead(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most jobs to list.")] = 100,
) -> None:
    """List the jobs that were given up, the latest first."""
    table = Table(Column("Id", no_wrap=True), "Kind", "Tenant", "Conversation", "Attempts", "Reason")
    for letter in asyncio.run(late.background.dead_letters(read_settings(Settings), limit)):
        job, whose = letter.job, letter.job.conversation
        if as_json:
            fields = {
                "id": letter.id,
                "kind": job.kind,
                "tenantId": whose.tenant_id,
                "conversationId": whose.conversation_id,
                "subject": job.subject,
                "attempts": letter.attempts,
                "buriedAt": letter.buried_at.isoformat(),
                "reason": letter.reason,
            }
            typer.echo(orjson.dumps(fields))
        else:
            cells = (job.kind, whose.tenant_id, whose.conversation_id, letter.attempts, letter.reason)
            table.add_row(letter.id, *map(str, cells))
    if not as_json:
        Console(soft_wrap=False).print(table)


@commands.command("replay")
def replay(
    letter_id: Annotated[str | None, typer.Argument(metavar="ID", help="As `jobs dead` lists it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every job that was given up.")] = False,
) -> None:
    """Have a job done again, its attempts counted anew. Ends with 1 when there is no such job."""
    if (letter_id is None) is not every:
        raise typer.BadParameter("give one ID, or --all")
    replayed = asyncio.run(late.background.replay_dead_letters(read_settings(Settings), letter_id))
    typer.echo(f"{replayed} due again", err=True)
    if letter_id is not None and not replayed:
        raise typer.Exit(1)

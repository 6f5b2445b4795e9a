"""`flow-engine jobs`: look at the background jobs that were given up, and have them done after all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from types import ModuleType
from typing import Annotated, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Column, Table

from flow_engine.errors import FlowEngineError
from flow_engine.ports.jobs import DeadLetter
from service.settings import Settings

_Result = TypeVar("_Result")

jobs = typer.Typer(no_args_is_help=True, help="Background jobs that were given up: list, replay.")


@jobs.command("dead")
def dead(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most jobs to list.")] = 100,
) -> None:
    """List the jobs that were given up, the latest first."""
    letters: Sequence[DeadLetter] = _run(lambda stored: stored.listed(Settings(), limit))
    if as_json:
        for letter in letters:
            typer.echo(orjson.dumps(_fields(letter)))
        return
    table = Table(Column("Id", no_wrap=True), "Kind", "Tenant", "Conversation", "Attempts", "Reason")
    for letter in letters:
        whose = letter.job.conversation
        told = (letter.job.kind, whose.tenant_id, whose.conversation_id, letter.attempts, letter.reason)
        table.add_row(letter.id, *map(str, told))
    Console(soft_wrap=False).print(table)


@jobs.command("replay")
def replay(
    letter_id: Annotated[str | None, typer.Argument(metavar="ID", help="As `jobs dead` lists it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every job that was given up.")] = False,
) -> None:
    """Have a job done again, its attempts counted anew. Ends with 1 when there is no such job."""
    if (letter_id is None) is not every:
        raise typer.BadParameter("give one ID, or --all")
    replayed: int = _run(lambda stored: stored.replayed(Settings(), letter_id))
    typer.echo(f"{replayed} due again", err=True)
    if letter_id is not None and not replayed:
        raise typer.Exit(1)


def _run(call: Callable[[ModuleType], Coroutine[None, None, _Result]]) -> _Result:
    # Loaded when used: the drivers of the stores would make every other command start slowly.
    try:
        return asyncio.run(call(import_module("service.dead_letters")))
    except FlowEngineError as error:
        typer.echo(f"flow-engine: {error.detail}", err=True)
        raise typer.Exit(2) from None


def _fields(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "kind": letter.job.kind,
        "tenantId": letter.job.conversation.tenant_id,
        "conversationId": letter.job.conversation.conversation_id,
        "subject": letter.job.subject,
        "attempts": letter.attempts,
        "buriedAt": letter.buried_at.isoformat(),
        "reason": letter.reason,
    }

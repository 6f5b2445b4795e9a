"""`flow-engine mail`: mailboxes that work."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer

from flow_engine.errors import ReloadAndDecide
from flow_engine.use_cases.agent_runs import RUN_STATUSES, Decision, RunStatus
from service import late

commands = typer.Typer(no_args_is_help=True, help="Mailboxes that work.")
_runs = typer.Typer(help="What became of mails.")
commands.add_typer(_runs, name="runs")

CONFIG = Annotated[Path, typer.Option(help="The mail config, YAML.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MESSAGES = Annotated[list[Path], typer.Argument(metavar="MESSAGE.eml...", help="Mails as files.")]
LINES = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
MAILBOX = Annotated[
    str | None, typer.Option("--mailbox", help="Which mailbox of the config; left out: the first.")
]
RUN = Annotated[str, typer.Argument(metavar="ID", help="The run, as `mail runs` lists it.")]


@commands.command("check")
def check(config: CONFIG) -> None:
    """Print everything that is wrong with a config, each with its JSON pointer. Ends with 2 for errors."""
    raise typer.Exit(late.mail.check(config))


@commands.command("explain")
def explain(config: CONFIG, messages: MESSAGES, as_json: LINES = False, mailbox: MAILBOX = None) -> None:
    """Tell what would become of mails: every rule's verdict, trust, and what would be read. Calls nothing."""
    raise typer.Exit(late.mail.explain(config, messages, as_json=as_json, mailbox=mailbox))


@commands.command("process")
def process(config: CONFIG, messages: MESSAGES, as_json: LINES = False, mailbox: MAILBOX = None) -> None:
    """Work on mails without a mailbox, and print what would be sent or drafted. HTTP tools are called."""
    raise typer.Exit(late.mail.process(config, messages, as_json=as_json, mailbox=mailbox))


@commands.command("schema")
def schema() -> None:
    """Print the JSON Schema of configs, for editors."""
    late.mail.print_schema()


@commands.command("demo")
def demo() -> None:
    """Play a sample mailbox offline: a model that follows a script, and the example pharmacy."""
    raise typer.Exit(late.mail_demo.demonstrate())


@commands.command("serve")
def serve(
    config: CONFIG,
    host: Annotated[str, typer.Option(help="Address of health and metrics.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Serve health and metrics here; 0: on any free port."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Take in what was received from this day on, too."),
    ] = None,
) -> None:
    """Watch the mailboxes and work on what comes, until SIGINT or SIGTERM."""
    late.mail_serve.serve_until_stopped(config, host, port, None if since is None else since.date())


def _status(text: str | None) -> RunStatus | None:
    for known in RUN_STATUSES:
        if known == text:
            return known
    if text is None:
        return None
    accepted = f"accepted is one of: {', '.join(RUN_STATUSES)}"
    raise typer.BadParameter(accepted, param_hint="'--status'")


@_runs.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(help=f"Only one of: {', '.join(RUN_STATUSES)}.")] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only runs behind this one.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; left out: all.")] = None,
    as_json: AS_JSON = False,
) -> None:
    """List the runs, oldest first: one for each mail that was taken in."""
    if context.invoked_subcommand is not None:
        return
    found = asyncio.run(late.mail_serve.rows(_status(status), after, limit))
    if as_json:
        _print_json(found)
        return
    if not found:
        typer.echo("no runs", err=True)
    for row in found:
        ending = row["error"] or (f"automatic: {row['automatic']}" if row["automatic"] else row["label"])
        named = (row["rule"] or "-", row["profile"] or "-", ending or "")
        typer.echo(
            f"{row['id']}  {row['created_at']}  {row['mailbox']}  {row['status']}  "
            + "  ".join(map(str, named))
        )


@_runs.command("show")
def show(run_id: RUN, as_json: AS_JSON = False) -> None:
    """Print one run with its model calls, its events, and the calls that wait."""
    row = asyncio.run(late.mail_serve.row(run_id))
    if as_json:
        _print_json(row)
        return
    for name, value in row.items():
        typer.echo(f"{name}: {orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()}")


@commands.command("approve")
def approve(run_id: RUN) -> None:
    """Let the calls of a run that wait be made. Ends with 1 where none waits."""
    _decide(run_id, "approved")


@commands.command("reject")
def reject(run_id: RUN) -> None:
    """Refuse the calls of a run that wait; the run goes on without them. Ends with 1 where none waits."""
    _decide(run_id, "rejected")


def _decide(run_id: str, decision: Decision) -> None:
    try:
        asyncio.run(late.mail_serve.decide(run_id, decision))
    except ReloadAndDecide as refused:
        typer.echo(f"flow-engine: {refused.detail}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{decision} {run_id}")


def _print_json(value: object) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

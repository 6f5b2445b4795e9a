"""The command line: `flow-engine serve`, `worker`, `mcp`, `settings`, `chat`, `jobs`, and the other groups.

Exit codes of every command: 0 done, 1 something was found wrong, 2 it could not be done as it was asked for.
"""

import asyncio
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import metadata
from io import TextIOWrapper
from typing import Annotated, Any

import orjson
import typer
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperGroup

from flow_engine.documents.findings import reworded
from flow_engine.errors import CallTheOperator, FlowEngineError
from service import late
from service.cli import flow, gateway, importing, mail, playing, voice, workspace
from service.settings import PREFIX, Settings, read_settings, refusal_line, shown_value, variable_of

_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What the system answers where a file takes no more: no room, or a device that is gone."""


class Commands(TyperGroup):
    """Every refusal of any command ends here: its reason on standard error, and exit code 2. So does output
    that cannot be written; a reader that wants no more, such as `head`, ends a command without a word."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _open_closed_streams()
        _may_open_what_the_system_allows()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # of what its encoding lacks, such as a mark in Latin-1
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno not in _NOT_WRITTEN:
                raise
            with suppress(OSError):  # of a standard error that is full too
                typer.echo(f"flow-engine: the output cannot be written: {error.strerror}", err=True)
            # What is still in the buffer is not tried again at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(2)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as refused:
            refused.message = reworded(refused.message)
            raise
        except FlowEngineError as refused:
            typer.echo(refusal_line(refused), err=True)
            raise typer.Exit(2) from None


def _open_closed_streams() -> None:
    """Those that the program was started without, as by `<&-`: Python has none in their place, and what is
    opened next, such as a server's socket, would get their numbers, which libuv does not close."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _may_open_what_the_system_allows() -> None:
    """As many files as by the hard limit: the usual soft one is 1,024, each connection is a file, and one
    beyond them is closed without an answer or a line in the log."""
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
chat = typer.Typer(no_args_is_help=True, help="Agents from a table behind one WebSocket.")
jobs = typer.Typer(no_args_is_help=True, help="Background jobs that were given up: list, replay.")
app.add_typer(chat, name="chat")
app.add_typer(flow.commands, name="flow")
flow.commands.command("test")(playing.play)
flow.commands.command("replay")(playing.replay)
flow.commands.command("simulate")(playing.simulate)
flow.commands.command("import")(importing.import_flow)
app.add_typer(gateway.commands, name="gateway")
app.add_typer(jobs, name="jobs")
app.add_typer(mail.commands, name="mail")
app.add_typer(voice.commands, name="voice")
app.add_typer(workspace.commands, name="workspace")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flow-engine {metadata.version('flow-engine')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Versioned conversational flows, and the agents that talk by them."""
    _warn_of_misspelt_variables()


HOST = Annotated[str, typer.Option(help="Address to listen on; others than loopback need API keys.")]
PORT = Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")]


@app.command()
def serve(
    host: HOST = "127.0.0.1",
    port: PORT = 8080,
    workers: Annotated[
        int, typer.Option(min=1, max=1_024, help="Processes on this port, one for each core; needs Redis.")
    ] = 1,
) -> None:
    """Serve the API until SIGINT or SIGTERM; with several workers SIGHUP renews them."""
    settings = read_settings(Settings)
    if workers > 1 and settings.redis_url is None:
        raise CallTheOperator(
            "redis_needed",
            f"--workers {workers} needs FLOW_ENGINE_REDIS_URL, the URL of a Redis that all workers share: "
            "without it conversations are kept inside one process, where the others do not find them",
        )
    if workers > 1:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # while this loads, no worker has read anything yet
        raise typer.Exit(late.running.serve_by_workers(settings, host, port, workers))
    late.running.serve_until_stopped(settings, host, port)


@app.command()
def worker(
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Serve Prometheus metrics here, on WORKER_METRICS_HOST (a setting, loopback by default).",
        ),
    ] = None,
) -> None:
    """Do the background work of all `serve` processes on the same Redis, until SIGINT or SIGTERM."""
    late.running.work_until_stopped(read_settings(Settings), metrics_port)


@app.command()
def mcp() -> None:
    """Speak MCP over standard input and output, on the settings of `serve`: for coding agents."""
    late.running.serve_mcp_until_input_ends(read_settings(Settings))


@app.command("settings")
def show_settings(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print every setting with its value and its default."""
    console = Console(soft_wrap=False)
    for title, kind, variable in _kinds_of_settings():
        settings = read_settings(kind, variable)
        if not as_json:
            console.print(_settings_table(title, settings, variable))
            continue
        for name, field in kind.model_fields.items():
            value, default = (_in_json(name, each) for each in (getattr(settings, name), field.default))
            told = {"program": title, "variable": variable(name), "value": value, "default": default}
            typer.echo(orjson.dumps({**told, "meaning": field.description}))


def _in_json(name: str, value: object) -> object:
    return value if value is None or isinstance(value, int | float) else shown_value(name, value)


def _kinds_of_settings() -> Sequence[tuple[str, type[BaseSettings], Callable[[str], str]]]:
    agent = late.voice_settings
    return (
        ("serve and worker", Settings, variable_of),
        ("chat serve", late.chat_settings.ChatSettings, variable_of),
        ("gateway serve", late.gateway_settings.GatewaySettings, variable_of),
        ("workspace", late.workspace_settings.WorkspaceSettings, variable_of),
        ("voice serve", agent.VoiceSettings, agent.variable_of),
        ("voice manager", late.voice_manager.ManagerSettings, variable_of),
    )


def _warn_of_misspelt_variables() -> None:
    """Of those that a setting is nearly called, the prefix included. Others may be anybody's: a key that a
    configuration names, or what Kubernetes tells of a Service that is called flow-engine."""
    names = map(str.upper, os.environ)
    unknown = {name for name in names if get_close_matches(name[: len(PREFIX)], [PREFIX], cutoff=0.8)}
    if not (unknown := unknown - {*map(variable_of, Settings.model_fields)}):
        return
    known = {name(field) for _, kind, name in _kinds_of_settings() for field in kind.model_fields}
    ends = {name.removeprefix(PREFIX): name for name in known}
    for name in sorted(unknown - known):
        begun = name.startswith(PREFIX)
        among = ends if begun else {name: name for name in known}
        for nearest in get_close_matches(name.removeprefix(PREFIX), among, 1, cutoff=0.8 if begun else 0.9):
            typer.echo(f"flow-engine: warning: {name} is no setting; is {among[nearest]} meant?", err=True)


def _settings_table(title: str, settings: BaseSettings, variable: Callable[[str], str]) -> Table:
    fields = type(settings).model_fields
    rows = [
        (variable(name), shown_value(name, getattr(settings, name)), str(of.default), of.description or "")
        for name, of in fields.items()
    ]
    return _table(("Variable", "Value", "Default", "Meaning"), rows, title)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    """Texts as they are: brackets are no markup, and what is too wide goes on in the next line. What the
    first column names is in one piece, to be copied."""
    named = max((len(row[0]) for row in rows), default=0)
    first, *others = heads
    columns = [Column(first, no_wrap=True, min_width=named), *(Column(h, overflow="fold") for h in others)]
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


# --- chat -------------------------------------------------------------------------------------


@chat.command("serve")
def serve_chat(
    host: HOST = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free one.")] = 8090,
) -> None:
    """Serve the agents table and the chat until SIGINT or SIGTERM."""
    late.chat.serve_until_stopped(host, port)


@chat.command("talk")
def talk(
    url: Annotated[str, typer.Option(help="Where `flow-engine chat serve` is.")] = "http://127.0.0.1:8090",
    user: Annotated[str, typer.Option(help="As whom to talk.")] = "terminal",
    session: Annotated[str | None, typer.Option(help="A session to go on with; left out: a new one.")] = None,
    token: Annotated[str | None, typer.Option(help="A token of POST /v1/chat/tokens.")] = None,
    key: Annotated[str | None, typer.Option(envvar="FLOW_ENGINE_CHAT_KEY", help="An API key.")] = None,
) -> None:
    """Talk to a chat in the terminal, line by line, until an empty line. Ends with 1 when it is cut off."""
    raise typer.Exit(late.chat_terminal.talk(url, user, session=session, token=token, key=key))


@chat.command("demo")
def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every frame, one JSON object a line.")
    ] = False,
) -> None:
    """Play a dialogue offline: three agents on a model that follows a script."""
    raise typer.Exit(late.chat_terminal.demonstrate(as_json=as_json))


# --- jobs -------------------------------------------------------------------------------------


@jobs.command("dead")
def dead(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most jobs to list.")] = 100,
) -> None:
    """List the jobs that were given up, the latest first."""
    rows: list[Sequence[str]] = []
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
            attempts = str(letter.attempts)
            rows.append(
                (letter.id, job.kind, whose.tenant_id, whose.conversation_id, attempts, letter.reason)
            )
    if not as_json:
        heads = ("Id", "Kind", "Tenant", "Conversation", "Attempts", "Reason")
        Console(soft_wrap=False).print(_table(heads, rows))


@jobs.command("replay")
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

"""The command line: `flow-engine serve`, `worker` and `settings`, and the groups of the other commands.

Exit codes of every command: 0 done, 1 something was found wrong, 2 it could not be done as it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import typer
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from flow_engine.errors import FlowEngineError
from service import late
from service.cli import chat, flow, gateway, jobs, mail, voice, workspace
from service.settings import SECRET, Settings, read_settings, variable_of


class Commands(TyperGroup):
    """Every refusal of any command ends here: its reason on standard error, and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlowEngineError as refused:
            typer.echo(f"flow-engine: {refused.detail}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(chat.commands, name="chat")
app.add_typer(flow.commands, name="flow")
app.add_typer(gateway.commands, name="gateway")
app.add_typer(jobs.commands, name="jobs")
app.add_typer(mail.commands, name="mail")
app.add_typer(voice.commands, name="voice")
app.add_typer(workspace.commands, name="workspace")

HOST = Annotated[str, typer.Option(help="Address to listen on; others than loopback need API keys.")]
PORT = Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")]


@app.command()
def serve(host: HOST = "127.0.0.1", port: PORT = 8080) -> None:
    """Serve the API until SIGINT or SIGTERM."""
    late.running.serve_until_stopped(read_settings(Settings), host, port)


@app.command()
def worker(
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Serve Prometheus metrics here, on loopback.")
    ] = None,
) -> None:
    """Do the background work of all `serve` processes on the same Redis, until SIGINT or SIGTERM."""
    late.running.work_until_stopped(read_settings(Settings), metrics_port)


@app.command("settings")
def show_settings() -> None:
    """Print every setting with its value and its default."""
    console, agent = Console(soft_wrap=False), late.voice_settings
    console.print(_table("serve and worker", read_settings(Settings), variable_of))
    console.print(_table("chat serve", read_settings(late.chat_settings.ChatSettings), variable_of))
    gateway_settings = read_settings(late.gateway_settings.GatewaySettings)
    console.print(_table("gateway serve", gateway_settings, variable_of))
    own = read_settings(late.workspace_settings.WorkspaceSettings)
    console.print(_table("workspace", own, variable_of))
    of_agent = read_settings(agent.VoiceSettings, agent.variable_of)
    console.print(_table("voice serve", of_agent, agent.variable_of))


def _table(title: str, settings: BaseSettings, variable: Callable[[str], str]) -> Table:
    table = Table("Variable", "Value", "Default", "Meaning", title=title)
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        shown = _without_password(str(value)) if name in SECRET and value is not None else str(value)
        table.add_row(variable(name), shown, str(field.default), field.description)
    return table


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))

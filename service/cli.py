"""The command line: `flow-engine serve`, `flow-engine settings`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.table import Table

from flow_engine.errors import FlowEngineError
from service.flow_diagram import diagram
from service.flow_test import play
from service.flow_validate import validate
from service.jobs_commands import jobs
from service.settings import SECRET, Settings
from service.voice_commands import voice

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

flow = typer.Typer(no_args_is_help=True, help="Work on flow documents: validate, draw, test.")
app.add_typer(flow, name="flow")
app.add_typer(jobs, name="jobs")
app.add_typer(voice, name="voice")
flow.command("validate")(validate)
flow.command("diagram")(diagram)
flow.command("test")(play)

HOST = Annotated[str, typer.Option(help="Address to listen on; others than loopback need API keys.")]
PORT = Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")]


@app.command()
def serve(host: HOST = "127.0.0.1", port: PORT = 8080) -> None:
    """Serve the API until SIGINT or SIGTERM."""
    settings = _settings()
    # Only this command needs servers and stores; loading them would make every other one start slowly.
    serving = import_module("service.serving")
    try:
        serving.serve_until_stopped(settings, host, port)
    except FlowEngineError as error:
        raise _refused(error.detail) from None


@app.command()
def worker(
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Serve Prometheus metrics here, on loopback.")
    ] = None,
) -> None:
    """Do the background work of all `serve` processes on the same Redis, until SIGINT or SIGTERM."""
    settings = _settings()
    working = import_module("service.working")
    try:
        working.work_until_stopped(settings, metrics_port)
    except FlowEngineError as error:
        raise _refused(error.detail) from None


@app.command("settings")
def show_settings() -> None:
    """Print every setting with its value and its default."""
    settings = _settings()
    console = Console(soft_wrap=False)
    console.print(_table("serve and worker", settings, _variable))
    # The voice agent's are loaded here alone: what answers calls would make every other command start slowly.
    agent = import_module("channels.voice.server.settings")
    try:
        console.print(_table("voice serve", agent.VoiceSettings(), agent.variable_of))
    except ValidationError as error:
        raise _refused(_problems(error, agent.variable_of)) from None


def _table(title: str, settings: BaseSettings, variable: Callable[[str], str]) -> Table:
    table = Table("Variable", "Value", "Default", "Meaning", title=title)
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        shown = _without_password(str(value)) if name in SECRET and value is not None else str(value)
        table.add_row(variable(name), shown, str(field.default), field.description)
    return table


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        raise _refused(_problems(error, _variable)) from None


def _variable(name: str) -> str:
    return f"FLOW_ENGINE_{name.upper()}"


def _problems(error: ValidationError, variable: Callable[[str], str]) -> str:
    found = ((str(each["loc"][0]), each["msg"]) for each in error.errors(include_input=False))
    return "; ".join(f"{variable(name)}: {message}" for name, message in found)


def _refused(reason: str) -> typer.Exit:
    typer.echo(f"flow-engine does not start: {reason}", err=True)
    return typer.Exit(2)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))


if __name__ == "__main__":
    app()

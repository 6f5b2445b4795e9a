"""The command line: `flow-engine serve`, `flow-engine settings`."""

from __future__ import annotations

import gc
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer
import uvicorn
import uvloop
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from flow_engine.errors import FlowEngineError
from service.logs import configure_logging
from service.settings import SECRET, Settings
from service.wiring import build_service

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

flow = typer.Typer(no_args_is_help=True, help="Work on flow documents: validate, draw, test.")
app.add_typer(flow, name="flow")

HOST = Annotated[str, typer.Option(help="Address to listen on; others than loopback need API keys.")]
PORT = Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")]


@app.command()
def serve(host: HOST = "127.0.0.1", port: PORT = 8080) -> None:
    """Serve the API until SIGINT or SIGTERM."""
    settings = _settings()
    configure_logging(settings.log_level)
    try:
        uvloop.run(_serve(settings, host, port))
    except FlowEngineError as error:
        raise _refused(error.detail) from None
    except KeyboardInterrupt:  # uvicorn has shut down in order before it passes the signal on
        return


async def _serve(settings: Settings, host: str, port: int) -> None:
    service = build_service(settings, host=host, port=port)
    async with service.opened():
        # Fewer and later collections: what lives now stays, and requests make few cycles.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)
        config = uvicorn.Config(
            service.app,
            host=host,
            port=port,
            http="httptools",
            lifespan="off",
            access_log=False,
            log_config=None,
        )
        typer.echo(f"Flow Engine on http://{host}:{port} (API reference: /docs). Ctrl-C stops it.", err=True)
        await uvicorn.Server(config).serve()


@app.command("settings")
def show_settings() -> None:
    """Print every setting with its value and its default."""
    settings = _settings()
    table = Table("Variable", "Value", "Default", "Meaning")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        shown = _without_password(str(value)) if name in SECRET and value is not None else str(value)
        table.add_row(f"FLOW_ENGINE_{name.upper()}", shown, str(field.default), field.description)
    Console(soft_wrap=False).print(table)


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        problems = [
            f"FLOW_ENGINE_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}"
            for e in error.errors(include_input=False)
        ]
        raise _refused("; ".join(problems)) from None


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

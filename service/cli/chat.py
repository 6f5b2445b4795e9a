"""`flow-engine chat`: agents from a table behind one WebSocket."""

from __future__ import annotations

from typing import Annotated

import typer

from service import late

commands = typer.Typer(no_args_is_help=True, help="Agents from a table behind one WebSocket.")


@commands.command("serve")
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need API keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free one.")] = 8090,
) -> None:
    """Serve the agents table and the chat until SIGINT or SIGTERM."""
    late.chat.serve_until_stopped(host, port)


@commands.command("talk")
def talk(
    url: Annotated[str, typer.Option(help="Where `flow-engine chat serve` is.")] = "http://127.0.0.1:8090",
    user: Annotated[str, typer.Option(help="As whom to talk.")] = "terminal",
    session: Annotated[str | None, typer.Option(help="A session to go on with; left out: a new one.")] = None,
    token: Annotated[str | None, typer.Option(help="A token of POST /v1/chat/tokens.")] = None,
    key: Annotated[str | None, typer.Option(envvar="FLOW_ENGINE_CHAT_KEY", help="An API key.")] = None,
) -> None:
    """Talk to a chat in the terminal, line by line, until an empty line. Ends with 1 when it is cut off."""
    raise typer.Exit(late.chat_terminal.talk(url, user, session=session, token=token, key=key))


@commands.command("demo")
def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every frame, one JSON object a line.")
    ] = False,
) -> None:
    """Play a dialogue offline: three agents on a model that follows a script."""
    raise typer.Exit(late.chat_terminal.demonstrate(as_json=as_json))

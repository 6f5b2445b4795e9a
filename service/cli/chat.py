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

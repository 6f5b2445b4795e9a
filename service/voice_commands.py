"""`flow-engine voice`: answer the phone by a config."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from flow_engine.errors import FlowEngineError
from service.voice_manage import manage

voice = typer.Typer(no_args_is_help=True, help="Answer the phone by a config.")
voice.command("manage")(manage)


@voice.command("serve")
def serve(
    config: Annotated[Path, typer.Option(help="The agent's config, JSON of version 2.0.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free one.")] = 5050,
    base_url: Annotated[
        str | None, typer.Option(help="Stands in for the config's base_url, as in tests and staging.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Directory for recordings of all calls: everything that is said, in the clear."),
    ] = None,
) -> None:
    """Answer calls from Twilio and by SIP until SIGINT or SIGTERM. Ends with 2 for a config with errors."""
    # Loaded when used: what answers calls would make every other command start slowly.
    serving = import_module("service.voice_serving")
    try:
        code: int = serving.serve_until_stopped(config, host, port, base_url=base_url, recordings=record)
    except FlowEngineError as error:
        typer.echo(f"flow-engine does not start: {error.detail}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(code)


@voice.command("replay")
def replay(
    config: Annotated[Path, typer.Option(help="The agent's config, JSON of version 2.0.")],
    events: Annotated[Path, typer.Option(help="A recording, or bare events of Twilio, one JSON a line.")],
    audio: Annotated[bool, typer.Option("--audio", help="Print the frames of audio too.")] = False,
) -> None:
    """Print the frames that an agent would send and the HTTP calls it would make. Nothing is sent."""
    replaying = import_module("service.voice_replaying")
    try:
        code: int = replaying.replay_to_output(config, events, with_audio=audio)
    except FlowEngineError as error:
        typer.echo(f"not replayed: {error.detail}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(code)


@voice.command("demo")
def demo(
    config: Annotated[
        Path | None, typer.Option(help="The agent's config; left out: a switchboard that comes along.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="What the model plays: JSON of reactions, see docs/voice-replay.md.")
    ] = None,
    say: Annotated[
        list[str] | None, typer.Option(help="What the caller says; once for each turn, in order.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="The business's API; left out: a stand-in that answers anything.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Directory for a recording of the call.")] = None,
) -> None:
    """Have a call without an account or a phone, and print it as it goes. The model plays a script."""
    demonstrating = import_module("service.voice_demo")
    try:
        play = demonstrating.play_of(config, script, say or [], base_url=base_url, recordings=record)
        code: int = demonstrating.demonstrate(play)
    except FlowEngineError as error:
        typer.echo(f"flow-engine does not start: {error.detail}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(code)

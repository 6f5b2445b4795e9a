"""`flow-engine voice`: answer the phone by a config, replay and demonstrate calls, run many agents."""

import shlex
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from service import late

AGENT_COMMAND = shlex.join((sys.executable, "-m", "service.cli", "voice", "serve"))
SIP_BRIDGE_COMMAND = shlex.join((sys.executable, "-m", "service.cli", "voice", "sip-bridge"))

commands = typer.Typer(no_args_is_help=True, help="Answer the phone by a config.")


@commands.command("serve")
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
    late.voice.serve_until_stopped(config, host, port, base_url=base_url, recordings=record)


@commands.command("replay")
def replay(
    config: Annotated[Path, typer.Option(help="The agent's config, JSON of version 2.0.")],
    events: Annotated[Path, typer.Option(help="A recording, or bare frames of the line, one JSON a line.")],
    carrier: Annotated[
        str, typer.Option(envvar="FLOW_ENGINE_VOICE_CARRIER", help="Whose frames the line has.")
    ] = "twilio",
    audio: Annotated[bool, typer.Option("--audio", help="Print the frames of audio too.")] = False,
    http: Annotated[
        Path | None,
        typer.Option(help="Answers of HTTP calls instead of recorded ones: JSON by method and path."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="What the model plays instead of what was recorded: JSON of reactions."),
    ] = None,
) -> None:
    """Print the frames that an agent would send and the HTTP calls it would make. Nothing is sent."""
    late.voice_replay.replay_to_output(config, events, carrier, with_audio=audio, http=http, script=script)


@commands.command("demo")
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
    demo = late.voice_demo
    demo.demonstrate(demo.play_of(config, script, say or [], base_url=base_url, recordings=record))


@commands.command("sip-bridge")
def sip_bridge() -> None:
    """Register at a SIP server, and pass its calls to a voice agent of this machine until SIGINT or SIGTERM.
    Calls that it has then may end, at most 30 s long, but for a second signal.
    The account is in SIP_DOMAIN, SIP_USERNAME and SIP_PASSWORD, the agent's port in AGENT_PORT."""
    late.voice_manager.bridge_until_stopped()


@commands.command("manage")
def manage(
    *,
    api: Annotated[
        str, typer.Option(envvar="FLOW_ENGINE_MANAGER_API_URL", help="Where the list is: URL/api/sip/agents.")
    ],
    templates: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Directory with a config template for each type; left out: those that come along.",
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="What belongs to this manager: configs, ports, status, lock.")
    ] = Path(".data/voice"),
    first_port: Annotated[int, typer.Option(min=1, max=65_535, help="Lowest port of an agent.")] = 5050,
    refresh_s: Annotated[float, typer.Option(min=1, help="Seconds between two looks at the list.")] = 300,
    health_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two health checks.")] = 10,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds for which an end waits for calls.")] = 300,
    agent_command: Annotated[
        str, typer.Option(help="Runs an agent; --config FILE --port N are appended.")
    ] = AGENT_COMMAND,
    sip_bridge_command: Annotated[
        str, typer.Option(help="Runs a SIP bridge, beside agents whose sipBridge is true; empty: none.")
    ] = SIP_BRIDGE_COMMAND,
    front_host: Annotated[str, typer.Option(help="Address of the door to all agents.")] = "127.0.0.1",
    front_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Its port: /ID/... is that agent's; 0: no such door.")
    ] = 0,
) -> None:
    """Run an agent for each entry of the list until SIGINT or SIGTERM; SIGHUP looks at the list now."""
    agent_words = _words("--agent-command", agent_command)
    if not agent_words:
        raise typer.BadParameter("--agent-command is empty")
    late.voice_manager.manage_until_stopped(
        late.voice_manager.ManageOptions(
            _api_url(api),
            templates,
            directory,
            first_port,
            refresh_s,
            health_s,
            drain_s,
            agent_words,
            _words("--sip-bridge-command", sip_bridge_command),
            (front_host, front_port) if front_port else None,
        )
    )


def _api_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    else:
        usable = usable and not (parts.username or parts.password or parts.query or parts.fragment)
    if not usable:
        raise typer.BadParameter("--api is http:// or https://, a host, and no query or credentials")
    return text.rstrip("/")


def _words(name: str, command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error}") from None

"""`flow-engine gateway`: one OpenAI-compatible door in front of Ollama, vLLM, OpenAI and others."""

import asyncio
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer

from service import late
from service.settings import Settings, read_settings

commands = typer.Typer(no_args_is_help=True, help="One OpenAI-compatible door in front of model servers.")
cache = typer.Typer(no_args_is_help=True, help="The answers that are kept.")
commands.add_typer(cache, name="cache")


@commands.command("serve")
def serve(
    config: Annotated[
        Path | None, typer.Option(help="The gateway's file, TOML; else FLOW_ENGINE_GATEWAY_CONFIG.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need API keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free one.")] = 8095,
) -> None:
    """Serve the backends of the file until SIGINT or SIGTERM."""
    late.gateway.serve_until_stopped(config, host, port)


@commands.command("usage")
def usage(
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The day, of UTC; else today.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what each key has used of each model on a day: calls, tokens and US dollars."""
    begins = (day or datetime.now(UTC)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC)
    since = begins.timestamp()
    found = asyncio.run(late.gateway_usage.usage_between(_path(), since, since + 86_400))
    if as_json:
        typer.echo(orjson.dumps({"day": f"{begins:%Y-%m-%d}", "usage": [asdict(each) for each in found]}))
        return
    for each in found:
        typer.echo(
            f"{each.tenant} {each.key}  {each.backend} {each.model}  {each.calls} calls, "
            f"{each.failed} failed, {each.input_tokens} tokens in, {each.output_tokens} out, "
            f"{each.usd:.4f} USD"
        )


@cache.command("stats")
def stats(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Print how many answers are kept, and how often they were used."""
    found = asyncio.run(late.gateway_cache.cache_stats(_path(), time.time()))
    if as_json:
        typer.echo(orjson.dumps(asdict(found)))
        return
    typer.echo(f"{found.entries} entries, {found.bytes} bytes, {found.hits} hits")
    for model, entries in found.models.items():
        typer.echo(f"  {model}: {entries}")


@cache.command("clear")
def clear(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Forget every answer; running gateways follow within two seconds."""
    cleared = asyncio.run(late.gateway_cache.clear_cache(_path()))
    typer.echo(orjson.dumps({"cleared": cleared}) if as_json else f"{cleared} entries cleared")


def _path() -> Path:
    return read_settings(Settings).data_dir / late.gateway_database.FILE_NAME

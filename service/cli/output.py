"""How the commands on files print, and how they end."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

FOUND_WRONG, UNREADABLE = 1, 2
"""Exit codes."""

AS_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]

console = partial(Console, highlight=False, soft_wrap=True)


def write(file: Path, content: bytes) -> None:
    """What cannot be written is reported on standard error and ends the command with 2."""
    try:
        file.write_bytes(content)
    except OSError as error:
        raise unreadable(f"{file}: {error.strerror}") from None


def unreadable(*lines: str) -> typer.Exit:
    """The end of a command, once these are on standard error."""
    for line in lines:
        typer.echo(line, err=True)
    return typer.Exit(UNREADABLE)

"""`flow-engine flow diagram`: a version document as a diagram, without a service."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import orjson
import typer

from flow_engine.diagrams import dot, mermaid, xstate
from flow_engine.documents import FlowVersion, complete_version, parse_json, parse_version
from flow_engine.errors import CorrectTheInput, FlowEngineError
from service.graphviz import Graphviz

STDIN = "-"
REFUSED, UNREADABLE = 1, 2


class Format(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"
    DOT = "dot"
    XSTATE = "xstate"


FILE = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A version document, or {flow, version} as the samples are; - reads standard input.",
    ),
]
FORMAT = Annotated[
    Format, typer.Option("--format", help="Mermaid, an SVG image, Graphviz's DOT, or JSON for XState 5.")
]
OUTPUT = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")]


def diagram(file: FILE, form: FORMAT = Format.MERMAID, output: OUTPUT = None) -> None:
    """Draw a flow version: exit code 0 drawn, 1 the document or Graphviz refuses, 2 unreadable."""
    try:
        text = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise _failed(f"{file}: {error.strerror}", UNREADABLE) from None
    try:
        drawn = _drawn(_version(text), form)
    except CorrectTheInput as refusal:
        for finding in refusal.findings:
            typer.echo(f"{file}:{finding.pointer}: {finding.code} {finding.message}", err=True)
        raise _failed(f"{file}: {refusal.detail}", REFUSED) from None
    except FlowEngineError as error:
        raise _failed(f"{file}: {error.detail}", REFUSED) from None
    if output is None:
        sys.stdout.buffer.write(drawn)
        return
    try:
        output.write_bytes(drawn)
    except OSError as error:
        raise _failed(f"{output}: {error.strerror}", UNREADABLE) from None


def _version(text: bytes) -> FlowVersion:
    raw = parse_json(text)
    if isinstance(raw, dict):
        document = cast("dict[str, object]", raw)
        # A version is closed and has no property of this name: it cannot be mistaken for the wrapping.
        inner = document.get("version")
        version = cast("dict[str, object]", inner) if isinstance(inner, dict) else document
        raw = complete_version(
            version,
            version_id="version",
            flow_id="flow",
            created_at="1970-01-01T00:00:00Z",
            created_by="file",
        )
    return parse_version(raw)


def _drawn(version: FlowVersion, form: Format) -> bytes:
    if form is Format.MERMAID:
        return mermaid(version).encode()
    if form is Format.XSTATE:
        return orjson.dumps(xstate(version), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    source = dot(version)
    return source.encode() if form is Format.DOT else asyncio.run(Graphviz().svg(source))


def _failed(reason: str, code: int) -> typer.Exit:
    typer.echo(reason, err=True)
    return typer.Exit(code)

"""`flow-engine flow validate`: what a save would say about version documents, without a service.

Starts fast and touches nothing but the files: no store, no network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NotRequired, cast

import orjson
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text
from typing_extensions import TypedDict

from flow_engine.documents import DocumentLimits
from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.linting import CODES, Severity
from flow_engine.use_cases.submissions import Submissions
from service.settings import Settings
from system_prompts.loader import load_system_prompts

STDIN = "-"
CLEAN, ERRORS, UNREADABLE = 0, 1, 2

_NO_FLOW = "flow"
_COLOURS: Mapping[Severity, str] = {"error": "bold red", "warning": "yellow"}

FILES = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Version documents, or files {flow, version} as the samples are; - reads standard input.",
    ),
]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
STRICT = Annotated[bool, typer.Option("--strict", help="Warnings fail too.")]


class FindingRow(TypedDict):
    pointer: str
    code: str
    message: str


class FileReport(TypedDict):
    """`unreadable` says why nothing could be checked. `draft`: only the schema was checked (F8)."""

    file: str
    valid: bool
    draft: bool
    errors: list[FindingRow]
    warnings: list[FindingRow]
    unreadable: NotRequired[str]


@dataclass(frozen=True, slots=True)
class _Document:
    """A version's JSON text, and where it stands in its file."""

    body: bytes
    flow_id: str
    place: str
    draft: bool


class _Unreadable(Exception):
    """There is no document to be checked."""


def validate(files: FILES, as_json: AS_JSON = False, strict: STRICT = False) -> None:
    """Check flow versions as a save does: exit code 0 clean or warnings only, 1 errors, 2 unreadable."""
    limits = _limits()
    submissions = Submissions(load_system_prompts(), limits, lambda: "version")
    reports = [_report(name, submissions) for name in files]
    if as_json:
        counts = {kind: sum(len(report[kind]) for report in reports) for kind in ("errors", "warnings")}
        typer.echo(orjson.dumps({"files": reports, **counts}, option=orjson.OPT_INDENT_2))
    else:
        _print(reports)
    raise typer.Exit(_exit_code(reports, strict=strict))


def _limits() -> DocumentLimits:
    """Those that this installation's settings ask for."""
    try:
        return Settings().document_limits
    except ValidationError as error:
        names = ", ".join(f"FLOW_ENGINE_{'_'.join(map(str, e['loc'])).upper()}" for e in error.errors())
        typer.echo(f"wrong settings: {names}", err=True)
        raise typer.Exit(UNREADABLE) from None


def _report(name: str, submissions: Submissions) -> FileReport:
    report = FileReport(file=name, valid=False, draft=False, errors=[], warnings=[])
    try:
        document = _document(_read(name))
    except _Unreadable as error:
        return {**report, "unreadable": str(error)}
    try:
        submission = submissions.check(
            document.body, flow_id=document.flow_id, created_by="validate", now=datetime.now(UTC)
        )
    except CorrectTheInput as refusal:
        return {**report, "draft": document.draft, "errors": _rows(refusal.findings, document.place)}
    return {
        **report,
        "valid": True,
        "draft": document.draft,
        "warnings": _rows(submission.warnings, document.place),
    }


def _read(name: str) -> bytes:
    if name == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise _Unreadable(error.strerror or "cannot be read") from None


def _document(text: bytes) -> _Document:
    try:
        raw: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _Unreadable(f"not JSON: {error}") from None
    outer = _object(raw)
    # A version is closed and has no property of this name: it cannot be mistaken for the wrapping.
    wrapped = isinstance(outer.get("version"), dict)
    version, place = (_object(outer["version"]), "/version") if wrapped else (outer, "")
    own_flow = _object(outer.get("flow")).get("_id", version.get("conversationalFlowId"))
    return _Document(
        body=orjson.dumps(version) if place else text,
        flow_id=own_flow if isinstance(own_flow, str) else _NO_FLOW,
        place=place,
        draft=version.get("draft") is True,
    )


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _rows(findings: Iterable[Finding], place: str) -> list[FindingRow]:
    return [FindingRow(pointer=place + f.pointer, code=f.code, message=f.message) for f in findings]


def _exit_code(reports: Iterable[FileReport], *, strict: bool) -> int:
    reports = list(reports)
    if any("unreadable" in report for report in reports):
        return UNREADABLE
    failed = any(report["errors"] or (strict and report["warnings"]) for report in reports)
    return ERRORS if failed else CLEAN


def _print(reports: list[FileReport]) -> None:
    """Findings to standard output, one a line; what is about the run to standard error."""
    lines, notes = (
        Console(highlight=False, soft_wrap=True),
        Console(stderr=True, highlight=False, soft_wrap=True),
    )
    for report in reports:
        file = "<stdin>" if report["file"] == STDIN else report["file"]
        if "unreadable" in report:
            notes.print(Text(f"{file}: {report['unreadable']}"))
        if report["draft"]:
            notes.print(Text(f"{file}: a draft, which never runs: only its schema is checked"))
        for row in (*report["errors"], *report["warnings"]):
            colour = _COLOURS[CODES[row["code"]].severity]
            lines.print(
                Text.assemble(f"{file}:{row['pointer']}: ", (row["code"], colour), f" {row['message']}")
            )
    errors, warnings = (sum(len(report[kind]) for report in reports) for kind in ("errors", "warnings"))
    notes.print(Text(f"{len(reports)} file(s), {errors} error(s), {warnings} warning(s)"))

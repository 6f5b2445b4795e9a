"""`flow-engine flow`: check, draw, compare and merge version documents, without a service.

Starts fast and touches nothing but the files: no store, no network, no model. The commands that play
conversations are in `playing`, `import` is in `importing`.
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, NotRequired, cast

import orjson
import typer
from rich.text import Text
from typing_extensions import TypedDict

from adapters.graphviz import Graphviz
from adapters.outbound.policy import AllowList
from flow_engine.diagrams.graphviz import dot
from flow_engine.diagrams.mermaid import mermaid
from flow_engine.diagrams.xstate import xstate
from flow_engine.documents import complete_version, difference, merged, parse_json, parse_version
from flow_engine.errors import CorrectTheInput, Finding, FlowEngineError
from flow_engine.linting import CODES, Severity
from flow_engine.use_cases.submissions import Submissions
from flows.samples import UNNAMED_FLOW, VersionFile, unwrapped
from service.cli.output import AS_JSON, FOUND_WRONG, UNREADABLE, console, unreadable, write
from service.settings import Settings, read_settings
from system_prompts.loader import load_system_prompts

STDIN = "-"
SHOWN_CHARACTERS = 60
"""Of a value that differs, where it is shown on a line."""
SHOWN_BEFORE = 15
"""Characters of it before the place at which it differs, where its beginning is left out."""

_COLOURS: Mapping[Severity, str] = {"error": "bold red", "warning": "yellow"}

commands = typer.Typer(
    no_args_is_help=True, help="Work on flow documents: validate, draw, compare, test, replay."
)


class FindingRow(TypedDict):
    pointer: str
    code: str
    message: str


class FileReport(TypedDict):
    """`unreadable` says why nothing could be checked. `draft`: only the schema was checked (F8). Pointers are
    RFC 6901, into the file as it was read."""

    file: str
    valid: bool
    draft: bool
    errors: list[FindingRow]
    warnings: list[FindingRow]
    unreadable: NotRequired[str]


@commands.command("validate")
def validate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Version documents, or files {flow, version} as the samples are; - reads standard input.",
        ),
    ],
    as_json: AS_JSON = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
) -> None:
    """Check flow versions as a save does: exit code 0 clean or warnings only, 1 errors, 2 unreadable."""
    _refuse_standard_input_twice(*files)
    settings = read_settings(Settings)
    allow = AllowList.parse(settings.outbound_allow)
    submissions = Submissions(
        load_system_prompts(), settings.document_limits, lambda: "version", allow.visible_refusal
    )
    reports = [_checked(name, submissions) for name in files]
    if as_json:
        counts = {kind: sum(len(report[kind]) for report in reports) for kind in ("errors", "warnings")}
        typer.echo(orjson.dumps({"files": reports, **counts}, option=orjson.OPT_INDENT_2))
    else:
        _print_findings(reports)
    if any("unreadable" in report for report in reports):
        raise typer.Exit(UNREADABLE)
    if any(report["errors"] or (strict and report["warnings"]) for report in reports):
        raise typer.Exit(FOUND_WRONG)


def _checked(name: str, submissions: Submissions) -> FileReport:
    report = FileReport(file=typer.format_filename(name), valid=False, draft=False, errors=[], warnings=[])
    try:
        text = _bytes_of(name)
    except OSError as error:
        return {**report, "unreadable": error.strerror or "cannot be read"}
    try:
        file = unwrapped(orjson.loads(text), text)
    except orjson.JSONDecodeError:  # the check says why; of JSON that is too deep as well
        file = VersionFile(None, UNNAMED_FLOW, "", ())
    report["draft"] = isinstance(file.version, Mapping) and file.version.get("draft") is True
    try:
        submission = submissions.check(
            _body_of(file, text),
            flow_id=file.flow_id,
            created_by="validate",
            now=datetime.now(UTC),
            changed=file.changed,
        )
    except CorrectTheInput as refusal:
        if refusal.code == "json_invalid":
            return {**report, "unreadable": refusal.detail.removeprefix("the text is ")}
        return {**report, "errors": _rows(refusal.findings, file.place)}
    return {**report, "valid": True, "warnings": _rows(submission.warnings, file.place)}


def _body_of(file: VersionFile, text: bytes) -> bytes:
    if not file.place:
        return text
    try:
        return orjson.dumps(file.version)
    except orjson.JSONEncodeError:
        return text  # it is refused for its depth, which is why it cannot be encoded anew


def _bytes_of(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()


def _refuse_standard_input_twice(*files: str) -> None:
    """The second reader of it would find nothing."""
    if files.count(STDIN) > 1:
        raise typer.BadParameter("- can stand for one file only: standard input is read once")


def _rows(findings: Iterable[Finding], place: str) -> list[FindingRow]:
    return [FindingRow(pointer=place + f.pointer, code=f.code, message=f.message) for f in findings]


def _print_findings(reports: list[FileReport]) -> None:
    """Findings to standard output, one a line; what is about the run to standard error."""
    lines, notes = console(), console(stderr=True)
    for report in reports:
        file = "<stdin>" if report["file"] == STDIN else report["file"]
        if "unreadable" in report:
            notes.print(Text(f"{file}: {report['unreadable']}"))
        if report["draft"]:
            whole = "set 'draft' to false to have all of it checked"
            notes.print(Text(f"{file}: a draft, which never runs: only its schema is checked; {whole}"))
        for row in (*report["errors"], *report["warnings"]):
            colour = _COLOURS[CODES[row["code"]].severity]
            lines.print(
                Text.assemble(
                    f"{file}:{row['pointer'] or '/'}: ", (row["code"], colour), f" {row['message']}"
                )
            )
    errors, warnings = (sum(len(report[kind]) for report in reports) for kind in ("errors", "warnings"))
    unreadable = sum("unreadable" in report for report in reports)
    rest = f", {unreadable} unreadable" if unreadable else ""
    notes.print(Text(f"{len(reports)} file(s), {errors} error(s), {warnings} warning(s){rest}"))


@commands.command("diagram")
def diagram(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A version document, or {flow, version} as the samples are; - reads standard input.",
        ),
    ],
    form: Annotated[
        Literal["mermaid", "svg", "dot", "xstate"],
        typer.Option("--format", help="Mermaid, an SVG image, Graphviz's DOT, or JSON for XState 5."),
    ] = "mermaid",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
) -> None:
    """Draw a flow version: exit code 0 drawn, 1 the document or Graphviz refuses, 2 unreadable."""
    place = ""
    try:
        text = _bytes_of(file)
        read = unwrapped(parse_json(text), text)
        raw, place = read.version, read.place
        if isinstance(raw, dict):
            raw = complete_version(
                cast("dict[str, object]", raw),
                version_id="version",
                flow_id="flow",
                created_at="1970-01-01T00:00:00Z",
                created_by="file",
            )
        version = parse_version(raw)
        match form:
            case "mermaid":
                drawn = mermaid(version).encode()
            case "xstate":
                drawn = orjson.dumps(xstate(version), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            case "dot":
                drawn = dot(version).encode()
            case "svg":
                drawn = asyncio.run(Graphviz().svg(dot(version)))
    except OSError as error:
        raise unreadable(f"{file}: {error.strerror}") from None
    except FlowEngineError as error:
        no_json = error.code == "json_invalid"
        for each in error.findings if isinstance(error, CorrectTheInput) and not no_json else ():
            typer.echo(f"{file}:{place + each.pointer or '/'}: {each.code} {each.message}", err=True)
        typer.echo(f"{file}: {error.detail}", err=True)
        raise typer.Exit(UNREADABLE if no_json else FOUND_WRONG) from None
    if output is None:
        typer.echo(drawn, nl=False)
    else:
        write(output, drawn)


@commands.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A version document; - reads standard input.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The version document to compare it with.")],
    as_json: AS_JSON = False,
) -> None:
    """Tell what B changes of A, by ids: exit code 0 nothing, 1 something, 2 unreadable."""
    _refuse_standard_input_twice(before, after)
    found = difference(_version_in(before), _version_in(after))
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    else:
        lines = console()
        for each in found["changes"]:
            shown = _where_they_part(
                *(json.dumps(each[side], ensure_ascii=False) for side in ("before", "after"))
            )
            values = f": {' → '.join(shown)}" if each["change"] == "changed" else ""
            lines.print(Text(f"{each['change']} {each['what']} {each['id']} {each['path']}{values}"))
    if found["changes"]:
        raise typer.Exit(FOUND_WRONG)


def _where_they_part(*texts: str) -> list[str]:
    """Of each as much as is shown on a line: its beginning, or what is around the place at which they differ
    where that would not be seen."""
    first = next(
        (i for i, two in enumerate(zip(*texts, strict=False)) if len({*two}) > 1), min(map(len, texts))
    )
    far = first > SHOWN_CHARACTERS - SHOWN_BEFORE and max(map(len, texts)) > SHOWN_CHARACTERS
    begin = first - SHOWN_BEFORE if far else 0
    end = begin + SHOWN_CHARACTERS
    return [f"{'…' if begin else ''}{t[begin:end]}{'…' if len(t) > end else ''}" for t in texts]


def _version_in(name: str) -> Mapping[str, object]:
    """Of a file. What is none is reported on standard error and ends the command with 2."""
    try:
        text = _bytes_of(name)
        file = unwrapped(parse_json(text), text)
    except OSError as error:
        raise unreadable(f"{name}: {error.strerror or 'cannot be read'}") from None
    except CorrectTheInput as error:
        raise unreadable(f"{name}: {error.detail}") from None
    if not isinstance(file.version, Mapping):
        raise unreadable(f"{name}: a version document is a JSON object")
    if file.changed:
        told = [f"{name}:{file.place}{each.pointer}: {each.code} {each.message}" for each in file.changed]
        raise unreadable(*told)
    return cast("Mapping[str, object]", file.version)


@commands.command("merge")
def merge(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The version that the others were made from.")],
    ours: Annotated[str, typer.Argument(metavar="OURS", help="The version that wins where both changed it.")],
    theirs: Annotated[str, typer.Argument(metavar="THEIRS", help="The version to take the changes of.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print {document, conflicts} instead of the document alone.")
    ] = False,
) -> None:
    """Print one version with what both change of BASE, by ids; conflicts on standard error: exit code 0 none,
    1 some, 2 unreadable."""
    _refuse_standard_input_twice(base, ours, theirs)
    found = merged(_version_in(base), _version_in(ours), _version_in(theirs))
    typer.echo(orjson.dumps(found if as_json else found["document"], option=orjson.OPT_INDENT_2))
    for each in found["conflicts"]:
        sides = [json.dumps(each[side], ensure_ascii=False) for side in ("base", "ours", "theirs")]
        typer.echo(f"conflict {each['path']}: {sides[0]} → {sides[1]} | {sides[2]}", err=True)
    if found["conflicts"]:
        raise typer.Exit(FOUND_WRONG)

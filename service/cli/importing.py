"""`flow-engine flow import`: a flow of another system as a draft, and what could not be carried."""

import lzma
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, cast

import orjson
import typer
from pydantic import JsonValue

from flow_engine.documents import DocumentLimits, parse_json
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.importing import IMPORTERS, OriginalFormat, gathered
from flow_engine.testing.yaml_text import FileRejected, read_yaml

MAX_BYTES: Final = 32 * 1024 * 1024
"""Of all files of an original together, unpacked."""
_ONCE: Final = frozenset({"flows", "slots", "responses"})
"""What of Rasa's several files may not say in several ways. The rest is not read."""
_UNREADABLE: Final = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(RuntimeError, ValueError),  # of an archive that is encrypted, or whose names are damaged
)


def import_flow(
    original: Annotated[
        OriginalFormat, typer.Argument(metavar="FORMAT", help="retell, dialogflow-cx, rasa or pipecat.")
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="JSON or YAML files, a folder of them, or a ZIP of an export."
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print {document, remarks} instead of the document alone.")
    ] = False,
) -> None:
    """Print another system's flow as a draft; what could not be carried on standard error: exit code 0 done,
    2 unreadable."""
    try:
        whole = _whole(original, files, _contents(files))
        draft = IMPORTERS[original](whole)
    except CorrectTheInput as refusal:
        for each in refusal.findings:
            typer.echo(f"{each.pointer or '/'}: {each.code}: {each.message}", err=True)
        raise
    printed = {"document": draft.document, "remarks": draft.remarks} if as_json else draft.document
    typer.echo(orjson.dumps(printed, option=orjson.OPT_INDENT_2))
    for remark in () if as_json else draft.remarks:
        typer.echo(f"{remark['kept']} {remark['pointer'] or '/'}: {remark['message']}", err=True)


@dataclass(frozen=True, slots=True)
class _File:
    """`name` is its path inside its folder or archive, `path` that with the folder's or the archive's."""

    name: str
    path: str
    body: bytes


def _contents(files: Sequence[Path]) -> Mapping[str, JsonValue]:
    """What stands in every file, by its name, by its path where several have that name. Raises
    CorrectTheInput `too_large`, `original_invalid` with every mistake of every file."""
    contents: dict[str, JsonValue] = {}
    mistakes: list[Finding] = []
    found: list[_File] = []
    left = MAX_BYTES
    for file in _bodies(files, mistakes):
        if (left := left - len(file.body)) < 0:
            raise CorrectTheInput("too_large", f"accepted are at most {MAX_BYTES} bytes in all")
        found.append(file)
    namesakes = Counter(file.name for file in found)
    for file in found:
        name = file.name if namesakes[file.name] == 1 else file.path
        try:
            body = _decoded(name, file.body)
        except CorrectTheInput as refusal:
            # Of several files one without a document, commented out for one, says nothing.
            mistakes += (each for each in refusal.findings if each.code != "empty" or len(found) == 1)
        else:
            if contents.setdefault(name, body) != body:
                mistakes.append(Finding("", "duplicate_key", f"{name}: given twice"))
    if mistakes:
        raise CorrectTheInput("original_invalid", "not every file can be read", mistakes)
    return contents


def _bodies(files: Sequence[Path], mistakes: list[Finding]) -> Iterator[_File]:
    """Every JSON and YAML file, of a folder and of an archive too. What cannot be read is added to
    `mistakes`."""
    for given, path in ((root, each) for root in files for each in _inside(root)):
        try:
            if path == given and path.suffix == ".zip":
                yield from _unpacked(path)
            else:
                name = path.name if path == given else path.relative_to(given).as_posix()
                yield _File(name, path.as_posix(), path.read_bytes())
        except _UNREADABLE as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "cannot be read"
            mistakes.append(Finding("", "unreadable", f"{path}: {reason}"))


def _inside(path: Path) -> Sequence[Path]:
    """The files of a folder, without what is hidden in it; what is none is the only one."""
    with suppress(OSError):  # which is told where it is read
        if path.is_dir():
            found = (each for each in path.rglob("*") if each.suffix in {".json", ".yml", ".yaml"})
            return sorted(each for each in found if each.is_file() and not _hidden(each.relative_to(path)))
    return [path]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _unpacked(path: Path) -> Iterator[_File]:
    with zipfile.ZipFile(path) as archive:
        members = [each for each in archive.infolist() if each.filename.endswith(".json")]
        if sum(each.file_size for each in members) > MAX_BYTES:
            raise CorrectTheInput("too_large", f"{path}: accepted are at most {MAX_BYTES} bytes, unpacked")
        for each in members:
            with archive.open(each) as member:
                yield _File(each.filename, f"{path.as_posix()}/{each.filename}", member.read(each.file_size))


def _decoded(name: str, body: bytes) -> JsonValue:
    """Raises CorrectTheInput with a finding for each mistake."""
    if name.endswith(".json"):
        try:
            return cast(JsonValue, parse_json(body, DocumentLimits(max_bytes=MAX_BYTES)))
        except CorrectTheInput as refusal:
            message = f"{name}: {refusal.detail}"
            raise CorrectTheInput.breach(refusal.code, message) from None
    try:
        root, mistakes = read_yaml(body, MAX_BYTES)
    except FileRejected as refusal:
        mistakes = list(refusal.mistakes)
    else:
        if not mistakes:
            return cast(JsonValue, root.value)
    hint = "" if name.endswith((".yml", ".yaml")) else "; accepted is a file of JSON or YAML"
    found = [
        Finding(each.pointer, each.code, f"{name}, line {each.line}: {each.message}{hint}")
        for each in mistakes
    ]
    raise CorrectTheInput("original_invalid", name, found)


def _whole(original: OriginalFormat, files: Sequence[Path], contents: Mapping[str, JsonValue]) -> JsonValue:
    """What an importer reads: one document, a Dialogflow package gathered, Rasa's files merged."""
    if original == "rasa":
        return _merged(contents)
    if original == "dialogflow-cx" and len(contents) > 1:
        if len(files) > 1:
            raise CorrectTheInput("several_files", f"accepted is one package of {original}, not {len(files)}")
        return gathered(contents)
    if len(contents) != 1:
        raise CorrectTheInput("several_files", f"accepted is one file of {original}, not {len(contents)}")
    return next(iter(contents.values()))


def _merged(contents: Mapping[str, JsonValue]) -> JsonValue:
    """Rasa reads all files of a folder as one. Raises CorrectTheInput `original_invalid` with each flow, slot
    and response that several files have in several ways."""
    whole: dict[str, JsonValue] = {}
    twice: list[Finding] = []
    for name, body in contents.items():
        for key, value in body.items() if isinstance(body, dict) else ():
            known = whole.get(key)
            if isinstance(known, dict) and isinstance(value, dict):
                twice += (
                    Finding(pointer(key, each), "duplicate_key", f"given twice, the second time in {name}")
                    for each in value
                    if key in _ONCE and each in known and known[each] != value[each]
                )
                whole[key] = {**known, **value}
            elif isinstance(known, list) and isinstance(value, list):
                whole[key] = [*known, *value]
            elif value is not None or key not in whole:
                whole[key] = value
    if twice:
        raise CorrectTheInput("original_invalid", "files say the same in several ways", twice)
    return whole

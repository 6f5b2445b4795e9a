"""Listing, reading and searching: what is ignored, how lines are counted, what is too much.

Files that `.gitignore` of any directory or `.agentichat/ignore` names are neither listed nor searched; they
can be read by their path. `.git` and `.agentichat` are never walked.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, cast

import re2
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from channels.workspace.confinement import PROTECTED, Content, Outside, Refused, Root, is_text

MOST_FILE_BYTES: Final = 10_000_000
MOST_SEARCHED_BYTES: Final = 2_000_000
MOST_LINES: Final = 2_000
MOST_CHARACTERS: Final = 100_000
MOST_LISTED: Final = 2_000
MOST_MATCHES: Final = 200
SEARCH_WITHIN_S: Final = 20.0
DEEPEST: Final = 60

_NO_PLAIN_LINES: Final = r"--regexp=(?-u:[\x0b-\x0d\x1c-\x1e\x80-\xff])"
"""Finds what ripgrep's regexes read otherwise than ours: all beyond ASCII, and other ends of lines."""
_READ_OTHERWISE: Final = re.compile(r"\\[Az]|\(\?\w*-|&&|--|~~|\[[^\]]*\[[^:]")
"""Regexes that are another in ripgrep: ends of a text, flags that are off, sets of characters in sets."""

Result = dict[str, Any]
Shown = Callable[[str], bool]
"""Whether a path may be among the results."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file or a directory. `path` is relative to the root; `size` in bytes, `mtime` in seconds since
    1970."""

    path: str
    kind: str
    size: int
    mtime: float


class Ignored:
    """The patterns that hold in one directory: its own after those above it."""

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    def within(self, root: Root, folder: str) -> Ignored:
        """With the patterns of `folder` itself."""
        names = [".gitignore", *([".agentichat/ignore"] if folder == "." else [])]
        specs = list(self._specs)
        for name in names:
            with suppress(OSError, Outside, Refused):
                text = root.read(_joined(folder, name), 1_000_000).data.decode("utf-8", "replace")
                specs.append((folder, GitIgnoreSpec(_patterns(text))))
        return Ignored(tuple(specs))

    def holds(self, path: str, *, directory: bool) -> bool:
        """The innermost file that says something about the path decides."""
        for folder, spec in reversed(self._specs):
            relative = path if folder == "." else path[len(folder) + 1 :]
            verdict = spec.check_file(relative + ("/" if directory else "")).include
            if verdict is not None:
                return verdict
        return False


def _patterns(text: str) -> list[GitIgnoreSpecPattern]:
    """Git passes over a line that is none."""
    patterns: list[GitIgnoreSpecPattern] = []
    for line in text.splitlines():
        with suppress(ValueError, re.error):
            patterns.append(GitIgnoreSpecPattern(line))
    return patterns


def _joined(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"


def _above(root: Root, folder: str) -> Ignored:
    ignored, here = Ignored().within(root, "."), "."
    for part in [] if folder == "." else folder.split("/"):
        here = _joined(here, part)
        ignored = ignored.within(root, here)
    return ignored


def walk(root: Root, folder: str = ".", *, recursive: bool = True) -> Iterator[Found]:
    """Everything below `folder` that is not ignored, in order of paths. Links are named, never followed.
    Raises Outside, OSError where the folder itself cannot be read."""
    folder = root.resolved(folder)
    waiting = [(folder, _above(root, folder), 0)]
    first = True
    while waiting:
        here, ignored, depth = waiting.pop()
        try:
            listed = list(root.entries(here))
        except (OSError, Outside):
            if first:
                raise
            continue  # gone or closed meanwhile
        first = False
        below: list[tuple[str, Ignored, int]] = []
        for name, status in listed:
            path = _joined(here, name)
            directory = stat.S_ISDIR(status.st_mode)
            if name in PROTECTED or ignored.holds(path, directory=directory):
                continue
            regular = stat.S_ISREG(status.st_mode)
            link = stat.S_ISLNK(status.st_mode)
            kind = "directory" if directory else "file" if regular else "link" if link else "other"
            yield Found(path, kind, status.st_size, status.st_mtime)
            if directory and recursive and depth < DEEPEST:
                below.append((path, ignored.within(root, path), depth + 1))
        waiting += reversed(below)


def everything(path: str) -> bool:
    """Leaves nothing out."""
    return True


def list_files(
    root: Root, path: str, *, recursive: bool = False, pattern: str | None = None, shown: Shown = everything
) -> Result:
    """`{files: [{path, type, size}], truncated}`. A pattern with `/` is for paths, another for names."""
    files: list[Result] = []
    truncated = False
    for found in walk(root, path, recursive=recursive):
        name = found.path if pattern and "/" in pattern else found.path.rpartition("/")[2]
        if pattern is not None and (found.kind == "directory" or not fnmatchcase(name, pattern)):
            continue
        if not shown(found.path):
            continue
        if len(files) == MOST_LISTED:
            truncated = True
            break
        files.append({"path": found.path, "type": found.kind, "size": found.size})
    return {"success": True, "path": root.resolved(path), "files": files, "truncated": truncated}


def text_of(data: bytes, path: str) -> tuple[str, str]:
    """The text and its encoding. Raises Refused `BINARY_FILE`."""
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            with suppress(UnicodeDecodeError):
                return data.decode(encoding), encoding
    if b"\0" in data[:8_192]:
        raise Refused("BINARY_FILE", f"{path!r} is no text: {len(data)} bytes")
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def appended(data: bytes, more: str, path: str) -> bytes:
    """A file's content with more text, in the encoding that it is read in. Raises Refused `BINARY_FILE`, and
    `INVALID_ARGUMENTS` for a text that the encoding does not hold."""
    _, encoding = text_of(data, path)
    plain = {"utf-8-sig": "utf-8", "utf-16": "utf-16-be" if data.startswith(b"\xfe\xff") else "utf-16-le"}
    try:
        return data + more.encode(plain.get(encoding, encoding))
    except UnicodeEncodeError as error:
        wrong = ascii(more[error.start])
        raise Refused(
            "INVALID_ARGUMENTS",
            f"content: {path!r} is {encoding}, which does not hold {wrong}; nothing is written",
        ) from None


def read_file(root: Root, path: str, start: int | None, end: int | None) -> tuple[Result, Content]:
    """`{content, start_line, end_line, total_lines, encoding, truncated}`, lines from 1, both ends
    included; and the file as it was. Raises Outside, Refused, OSError."""
    content = root.read(path, MOST_FILE_BYTES)
    text, encoding = text_of(content.data, path)
    lines = text.splitlines(keepends=True)
    first = max(1, start or 1)
    last = min(len(lines), end if end is not None else len(lines), first + MOST_LINES - 1)
    if last < first and lines and (start or end):
        raise Refused("NO_SUCH_LINES", f"{path!r} has {len(lines)} lines")
    shown = "".join(lines[first - 1 : last])
    wanted = len(lines) if end is None else min(end, len(lines))
    truncated = last < wanted or len(shown) > MOST_CHARACTERS
    shown = shown[:MOST_CHARACTERS]
    result: Result = {
        "success": True,
        "path": path,
        "content": shown,
        "start_line": first,
        "end_line": first + max(0, len(shown.splitlines()) - 1),
        "total_lines": len(lines),
        "encoding": encoding,
        "truncated": truncated,
    }
    return result, content


def search_text(
    root: Root, query: str, path: str, *, regex: bool, case_sensitive: bool, shown: Shown = everything
) -> Result:
    """`{matches: [{path, line, text}], files_searched, truncated}`. A regex is matched in linear time (RE2).
    Raises Outside, Refused, OSError."""
    if not query:
        raise Refused("INVALID_ARGUMENTS", "query: at least one character is expected")
    options = re2.Options()
    options.case_sensitive = case_sensitive
    options.literal = not regex
    options.log_errors = False
    try:
        wanted = re2.compile(query, options=options)
    except cast("type[Exception]", re2.error) as error:
        raise Refused("INVALID_REGEX", f"{error}; accepted is the syntax of RE2") from None
    matches: list[Result] = []
    searched, until, truncated = 0, time.monotonic() + SEARCH_WITHIN_S, False
    pattern = [*([_NO_PLAIN_LINES] if regex else ["--fixed-strings"]), f"--regexp={query}"]
    unlike = regex and _READ_OTHERWISE.search(query)
    flags = [] if case_sensitive else ["--ignore-case"]
    names = None if unlike else _named_by_ripgrep(root, path, [*flags, *pattern])
    for name in filter(shown, _searchable(root, path) if names is None else names):
        if len(matches) >= MOST_MATCHES or time.monotonic() > until:
            truncated = True
            break
        with suppress(OSError, Outside, Refused):
            text, _ = text_of(root.read(name, MOST_SEARCHED_BYTES).data, name)
            searched += 1
            if wanted.search(text) is None and not regex:
                continue
            for number, line in enumerate(text.splitlines(), start=1):
                if len(matches) < MOST_MATCHES and wanted.search(line):
                    matches.append({"path": name, "line": number, "text": line[:500]})
    return {"success": True, "matches": matches, "files_searched": searched, "truncated": truncated}


def _named_by_ripgrep(root: Root, path: str, pattern: Sequence[str]) -> list[str] | None:
    """The files in which ripgrep finds the pattern, as `walk` orders them; None where it is not installed,
    does not understand it, or `path` is no directory. It opens files by their names, so it only says where to
    look: what is shown is read, and matched, through the root."""
    program, own = shutil.which("rg"), ".agentichat/ignore"
    with suppress(OSError, Outside, Refused):
        if b"\n!" in b"\n" + root.read(own, 1_000_000).data:
            return None  # ripgrep would let .gitignore stand above it
    if program is None or "\0" in pattern[-1] or not pattern[-1].isascii():
        return None  # it takes Latin-1 for broken UTF-8
    folder = root.resolved(path)
    options = ["--files-with-matches", "--null", "--no-config", "--hidden", "--no-messages"]
    options += ["--text", "--no-require-git", "--no-ignore-parent", "--no-ignore-global"]
    options += [
        "--no-ignore-exclude",
        "--no-ignore-dot",
        "--one-file-system",
        f"--max-filesize={MOST_SEARCHED_BYTES}",
    ]
    options += [f"--glob=!{name}" for name in sorted(PROTECTED)]
    options += [f"--ignore-file={own}"] if folder == "." else []
    with suppress(OSError, subprocess.TimeoutExpired), root.folder(folder) as (handle, _):
        found = subprocess.run(  # noqa: S603 - the pattern is an argument, and nothing is a command
            [program, *options, *pattern, "."],
            cwd=f"/proc/{os.getpid()}/fd/{handle}",
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=SEARCH_WITHIN_S,
            check=False,
        )
        if found.returncode <= 1:
            printed = (os.fsdecode(name) for name in found.stdout.split(b"\0") if name)
            listed = (os.path.normpath(name) for name in printed if is_text(name))
            names = sorted((_joined(folder, name) for name in listed), key=_as_walked)
            above = {at: _above(root, at or ".") for at in {name.rpartition("/")[0] for name in names}}
            return [each for each in names if not above[each.rpartition("/")[0]].holds(each, directory=False)]
    return None


def _as_walked(path: str) -> list[tuple[bool, str]]:
    *folders, name = path.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def _searchable(root: Root, path: str) -> Iterator[str]:
    try:
        for found in walk(root, path):
            if found.kind == "file" and found.size <= MOST_SEARCHED_BYTES:
                yield found.path
    except NotADirectoryError:
        yield root.resolved(path)


def described(path: str, error: Exception) -> Result:
    """A failure as a tool reports it."""
    match error:
        case Outside():
            return failure("OUTSIDE_WORKSPACE", str(error))
        case Refused():
            return failure(error.code, str(error))
        case FileNotFoundError():
            return failure("NOT_FOUND", f"there is no {path!r}")
        case FileExistsError():
            return failure("ALREADY_EXISTS", f"{path!r} is there already")
        case NotADirectoryError():
            return failure("NOT_A_DIRECTORY", f"{path!r} is below no directory")
        case PermissionError():
            return failure("PERMISSION_DENIED", f"{path!r} may not be used so")
        case OSError():
            return failure("IO_ERROR", f"{path!r}: {error.strerror}")
        case _:
            raise error


def failure(code: str, message: str) -> Result:
    """What a tool answers when it could not do what it was called for. `code` in capitals."""
    return {"success": False, "error": code, "message": message}

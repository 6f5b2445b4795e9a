"""What was before each write and delete, and the way back.

Contents are kept by their SHA-256 below `.agentichat/undo`, the oldest forgotten beyond `MOST_BYTES`.
Undoing looks first and restores then: where one file has changed since, none is touched.
"""

import difflib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from channels.workspace.confinement import Content, Outside, Refused, Root
from channels.workspace.files import MOST_FILE_BYTES, text_of
from channels.workspace.store import Change, Store
from flow_engine.errors import CallTheOperator, ReloadAndDecide

MOST_BYTES = 256 * 1024 * 1024
MOST_DIFF_LINES = 400
MOST_COMPARED = 4_000_000
"""Pairs of lines: the time to compare them grows with their number."""

MOST_STEPS = 20_000_000
"""Pairs of lines that are the same, looked through anew for each stretch: a second or so."""

_CONTEXT = 3
_HUNK = re.compile(r"@@ -(\d+)(.*) \+(\d+)(.*) @@\n")


def keep_blob(folder: Path, data: bytes) -> str:
    """The SHA-256 under which the content is kept. Raises OSError."""
    digest = hashlib.sha256(data).hexdigest()
    place = folder / digest
    if place.exists():
        os.utime(place)
        return digest
    beside = folder / f".{digest}.{os.getpid()}"
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(place)
    kept = sorted(((f.stat().st_mtime, f.stat().st_size, f) for f in folder.iterdir()), reverse=True)
    total = 0
    for _, size, each in kept:
        total += size
        if total > MOST_BYTES and each != place:
            each.unlink(missing_ok=True)
    return digest


def content_at(root: Root, path: str) -> Content | None:
    """None where there is no file. Raises Outside, Refused, OSError."""
    try:
        return root.read(path, MOST_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """A unified diff, `/dev/null` for no file; of what is no text, or changes its encoding, only the sizes in
    bytes, and of very many lines that differ only their numbers."""
    texts = _texts(path, before or b"", after or b"")
    if texts is None:
        return f"binary {path}: {len(before or b'')} bytes become {len(after or b'')}\n"
    old, new = (text.splitlines(keepends=True) for text in texts)
    names = [
        f"a/{path}" if before is not None else "/dev/null",
        f"b/{path}" if after is not None else "/dev/null",
    ]
    head = max(0, _alike(old, new) - _CONTEXT)
    tail = max(0, _alike(old[:head:-1], new[:head:-1]) - _CONTEXT)
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(old) * len(new) > MOST_COMPARED or _steps(old, new) > MOST_STEPS:
        return f"{path}: {len(old)} lines become {len(new)} others\n"
    lines = [
        _HUNK.sub(lambda at: f"@@ -{int(at[1]) + head}{at[2]} +{int(at[3]) + head}{at[4]} @@\n", line)
        if line.endswith("\n")
        else f"{line}\n"
        for line in difflib.unified_diff(old, new, names[0], names[1], n=_CONTEXT)
    ]
    more = [f"[{len(lines) - MOST_DIFF_LINES} lines left out]\n"] if len(lines) > MOST_DIFF_LINES else []
    return "".join(lines[:MOST_DIFF_LINES] + more)


def _steps(old: Sequence[str], new: Sequence[str]) -> int:
    """How many `difflib` takes at most. In 200 lines or more it passes over those that make a hundredth."""
    times = Counter(new)
    most = len(new) // 100 + 1 if len(new) >= 200 else len(new)
    return sum(times[line] for line in old if times[line] <= most) * min(len(old), len(new))


def _alike(lines: Sequence[str], others: Sequence[str]) -> int:
    """How many lines at the beginning are the same."""
    pairs = enumerate(zip(lines, others, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(lines), len(others)))


def _texts(path: str, before: bytes, after: bytes) -> tuple[str, str] | None:
    with suppress(UnicodeDecodeError):
        return before.decode("utf-8"), after.decode("utf-8")
    with suppress(Refused):
        (old, encoding), (new, other) = text_of(before, path), text_of(after, path)
        if encoding == other or not before or not after:
            return old, new
    return None


@dataclass(frozen=True, slots=True)
class Restored:
    """One file that is again what it was. `diff` is from what it had become, or says why it was left."""

    path: str
    diff: str


def undo(root: Root, store: Store, name: str | None, *, force: bool = False) -> list[Restored]:
    """Take back a step, a turn or a session, by default the newest session's last turn.

    Raises LookElsewhere `nothing_to_undo`; ReloadAndDecide `changed_since`, with the differences in its text,
    where a file is no longer what was written, or was not between two of the steps, and `force` is not set;
    CallTheOperator `undo_lost` for a content that is kept no longer.
    """
    changes = store.changes(name)
    by_path: dict[str, list[Change]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    conflicts: list[str] = []
    restored: list[Restored] = []
    plan: list[tuple[str, bytes | None, Content | None, Sequence[Change]]] = []
    for path, steps in by_path.items():
        try:
            now = content_at(root, path)
        except (Outside, Refused, OSError) as error:
            conflicts.append(f"{path}: {error}\n")
            restored.append(Restored(path, f"not restored: {conflicts[-1]}"))
            continue
        written, wanted = steps[-1].after, _blob(store, steps[0].before)
        if (now.digest if now else None) != written:
            conflicts.append(diff(path, _kept(store, written), now.data if now else None))
        for step, later in pairwise(steps):
            if step.after != later.before:
                conflicts.append(f"{path}: changed between {step.call} and {later.call}\n")
                conflicts.append(diff(path, _kept(store, step.after), _kept(store, later.before)))
        plan.append((path, wanted, now, steps))
    if conflicts and not force:
        raise ReloadAndDecide(
            "changed_since",
            "changed since, nothing was restored (--force restores all the same):\n" + "".join(conflicts),
        )
    for path, wanted, now, steps in plan:
        if wanted is not None:
            root.write(path, wanted, steps[0].mode or 0o644)
        elif now is not None:
            root.delete(path)
            root.remove_empty([folder for step in steps for folder in step.folders])
        restored.append(Restored(path, diff(path, now.data if now else None, wanted)))
        store.undone(steps)
    return restored


def _kept(store: Store, digest: str | None) -> bytes | None:
    """To be shown: None also for a content that is kept no longer."""
    with suppress(CallTheOperator):
        return _blob(store, digest)
    return None


def _blob(store: Store, digest: str | None) -> bytes | None:
    if digest is None:
        return None
    try:
        return (store.blobs / digest).read_bytes()
    except OSError as error:
        raise CallTheOperator("undo_lost", f"the content {digest[:12]} is kept no longer") from error

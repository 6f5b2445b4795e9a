"""Paths that cannot leave the workspace, whatever they are, and whoever changes links meanwhile (W10).

1. Every path is opened below a handle of the workspace's root. Linux resolves it with `openat2` and
   `RESOLVE_BENEATH`: `..`, absolute paths and links that lead out fail, also when they are put there in the
   middle of it. Other mounts and magic links fail too. Where the kernel has no `openat2`, each step is
   opened by itself, and follows no link at all.
2. What is opened is looked at once more by its own handle: only regular files are read, without waiting for
   anybody (a FIFO), and only such as have one name, since another hard link may stand outside.
3. A file is written beside its place, flushed, and renamed into a directory that is held open: a link of
   that name is replaced, never followed.
4. `.agentichat` and `.git` are read only.
5. A name that is no UTF-8 is not there: no answer to a model, and no database, could hold it.
"""

import ctypes
import errno
import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_OPENAT2 = 437
_RESOLVE = 0x08 | 0x02 | 0x01  # BENEATH, NO_MAGICLINKS, NO_XDEV
LONGEST_PATH = 4_000
DEEPEST = 200
PROTECTED = frozenset((".agentichat", ".git"))

_libc = ctypes.CDLL(None, use_errno=True)


class Outside(Exception):
    """The path leads out of the workspace, or might."""


class Refused(Exception):
    """`code` in capitals, as tools report it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def is_text(name: str) -> bool:
    """Whether a name of the file system, or an argument of the program, is UTF-8."""
    return not any("\ud800" <= each <= "\udfff" for each in name)


def _openat2(folder: int, path: str, flags: int, mode: int) -> int:
    """Raises OSError as the system call: EXDEV for what leads out, ENOSYS where there is no such call."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, _RESOLVE)
    while True:
        opened = _libc.syscall(_OPENAT2, folder, os.fsencode(path), how, len(how))
        if opened >= 0:
            return opened
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: somebody renamed on the way
            raise OSError(number, os.strerror(number), path)


def _mount_of(descriptor: int) -> str:
    """A directory of the same file system may be mounted here: its device is the same, its mount another."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as told:
        return next(line for line in told if line.startswith("mnt_id:"))


def _step_by_step(folder: int, path: str, flags: int, mode: int) -> int:
    *parents, name = [part for part in path.split("/") if part not in ("", ".")] or ["."]
    if ".." in (*parents, name):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    here = os.dup(folder)
    try:
        mount = _mount_of(here)
        for part in parents:
            step = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = step
            if _mount_of(here) != mount:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        opened = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=here)
        if _mount_of(opened) != mount:
            os.close(opened)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        return opened
    finally:
        os.close(here)


@dataclass(frozen=True, slots=True)
class Content:
    """A file as it was read. `digest` is its SHA-256; `mtime` is in seconds since 1970."""

    data: bytes
    digest: str
    mtime: float
    mode: int


class Root:
    """The workspace's directory, held open. `openat2` False stands for a kernel without it. Paths have
    at most 4,000 characters and 200 directories. Raises OSError where it cannot be opened."""

    def __init__(self, path: Path, *, openat2: bool = True) -> None:
        self.path = path.resolve()
        self.handle = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._openat2 = openat2

    def close(self) -> None:
        os.close(self.handle)

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """A descriptor of the caller's. Raises Outside, FileNotFoundError and other OSErrors."""
        relative = self._relative(path)
        try:
            if self._openat2:
                try:
                    return _openat2(self.handle, relative, flags, mode)
                except OSError as error:
                    if error.errno not in (errno.ENOSYS, errno.EPERM):
                        raise
                    self._openat2 = False
            return _step_by_step(self.handle, relative, flags, mode)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ELOOP):
                raise Outside(f"{path!r} leads out of the workspace") from None
            raise

    def _relative(self, path: str) -> str:
        """Raises Outside for an absolute path elsewhere, Refused `INVALID_PATH` for what is none. One below
        the root is taken as relative to it."""
        if not is_text(path):
            raise Refused("INVALID_PATH", f"{path!r} is no UTF-8")
        if "\0" in path or len(path) > LONGEST_PATH or path.count("/") > DEEPEST:
            raise Refused("INVALID_PATH", "a path holds no NUL, and is not endless")
        if path.startswith("/"):
            base = str(self.path)
            if path != base and not path.startswith(base.rstrip("/") + "/"):
                raise Outside(f"{path!r} is no path of the workspace")
            path = path[len(base) :].lstrip("/")
        return path or "."

    def name_of(self, descriptor: int) -> str:
        """Where an open file is, relative to the root, `.` for the root itself. Raises Outside, Refused."""
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if not is_text(real):
            raise Refused("INVALID_PATH", f"{real!r} is no UTF-8")
        base = str(self.path)
        if real == base:
            return "."
        if not real.startswith(base.rstrip("/") + "/"):
            raise Outside("the file has been moved out of the workspace")
        return real[len(base) :].lstrip("/").removesuffix(" (deleted)")

    def resolved(self, path: str) -> str:
        """The path without links, below the root; of what does not exist, its directory's and its name.
        Raises Outside, OSError."""
        try:
            descriptor = self.open(path, os.O_PATH)
        except FileNotFoundError:
            parent, name = self.split(path)
            above = self.resolved(parent)
            return name if above == "." else f"{above}/{name}"
        try:
            return self.name_of(descriptor)
        finally:
            os.close(descriptor)

    def split(self, path: str) -> tuple[str, str]:
        """Directory and name. Raises Outside for a path that ends in no name."""
        parent, _, name = self._relative(path).rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            raise Outside(f"{path!r} names no file of the workspace")
        return parent or ".", name

    def read(self, path: str, most: int) -> Content:
        """A regular file of at most `most` bytes. Raises Outside, Refused `TOO_LARGE` and for what is no such
        file, OSError."""
        descriptor = self.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise Refused("IS_A_DIRECTORY", f"{path!r} is a directory")
            if not stat.S_ISREG(status.st_mode):
                raise Refused("NOT_A_FILE", f"{path!r} is no regular file")
            if status.st_nlink > 1:
                raise Outside(
                    f"{path!r} has another name (a hard link), which may be outside of the workspace"
                )
            if status.st_size > most:
                raise Refused("TOO_LARGE", f"{path!r} has {status.st_size} bytes, at most {most} are read")
            data = b""
            while piece := os.read(descriptor, most + 1 - len(data)):
                data += piece
            digest = hashlib.sha256(data).hexdigest()
            return Content(data, digest, status.st_mtime, stat.S_IMODE(status.st_mode))
        finally:
            os.close(descriptor)

    @contextmanager
    def folder(self, path: str, *, create: bool = False) -> Generator[tuple[int, list[str]]]:
        """A directory held open, and those that had to be made, outermost first. Raises Outside, OSError."""
        made: list[str] = []
        parts = [part for part in self._relative(path).split("/") if part not in ("", ".")]
        while True:
            try:
                descriptor = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
                break
            except FileNotFoundError:
                if not create:
                    raise
                missing = self._first_missing(parts)
                above = self.open("/".join(parts[:missing]) or ".", os.O_RDONLY | os.O_DIRECTORY)
                try:
                    with suppress(FileExistsError):
                        os.mkdir(parts[missing], dir_fd=above)
                        made.append("/".join(parts[: missing + 1]))
                finally:
                    os.close(above)
        try:
            yield descriptor, made
        finally:
            os.close(descriptor)

    def _first_missing(self, parts: list[str]) -> int:
        for count in range(len(parts)):
            try:
                os.close(self.open("/".join(parts[: count + 1]), os.O_PATH))
            except FileNotFoundError:
                return count
        return len(parts) - 1

    def write(self, path: str, data: bytes, mode: int = 0o644) -> list[str]:
        """Put a whole file in its place, atomically. The directories that were made. Raises Outside, Refused,
        OSError."""
        target = self.writable(path)
        parent, name = self.split(target)
        with self.folder(parent, create=True) as (folder, made):
            self.name_of(folder)
            beside = f".{name[:100]}.{secrets.token_hex(6)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(beside, flags, mode, dir_fd=folder)
            with ExitStack() as undo:
                undo.callback(_unlink_if_there, beside, folder)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                self.name_of(folder)
                os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
                undo.pop_all()
            os.fsync(folder)
        return made

    def writable(self, path: str) -> str:
        """The path that a write of it changes: of a link that stays inside, what it leads to. Raises Outside,
        Refused `PROTECTED`."""
        target = self.resolved(path)
        if any(part.casefold().rstrip(" .") in PROTECTED for part in target.split("/")):
            raise Refused(
                "PROTECTED", f"{path!r} is kept from the file tools; accepted is a path outside of .git"
            )
        return target

    def delete(self, path: str) -> None:
        """A file or a link, never what it leads to. Raises Outside, Refused, OSError."""
        parent, name = self.split(path)
        self.writable(f"{parent}/{name}" if parent != "." else name)
        with self.folder(parent) as (folder, _):
            self.name_of(folder)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                raise Refused("IS_A_DIRECTORY", f"{path!r} is a directory; accepted is a file")
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)

    def remove_empty(self, folders: list[str]) -> None:
        """Directories that were made for a file and are empty again, innermost first."""
        for path in reversed(folders):
            parent, name = self.split(path)
            with suppress(OSError, Outside), self.folder(parent) as (folder, _):
                os.rmdir(name, dir_fd=folder)

    def entries(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """Names in a directory with what they are, links as links, sizes in bytes, by name. Raises Outside,
        OSError."""
        with self.folder(path) as (folder, _):
            for name in sorted(filter(is_text, os.listdir(folder))):
                with suppress(FileNotFoundError):
                    yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)


def _unlink_if_there(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)

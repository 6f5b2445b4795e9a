"""What the code is made of, in figures: `python -m benchmarks.structure [--json] [PLACE ...]`.

Places are packages or folders below the repository's root; without one, all production code is measured.
The figures follow a study of ten codebases; `docs/decisions/` names the goals. Everything is read from the
source text: nothing of it is imported.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
NOT_PRODUCTION = frozenset({"tests", "benchmarks", "examples", "docs", "deploy", "console"})
LONGEST_FUNCTION = 50

_UNITS = re.compile(
    r"\b(seconds?|milliseconds?|ms|minutes?|hours?|days?|bytes?|[KM]i?B|characters|UTC|ISO 8601|RFC \d+"
    r"|E\.164|BCP 47|percent|Hz|base64|JSON|UTF-8|port|URL|SVG|DOT|YAML|lines|tokens|samples|0 to 1)\b|µs|%"
)
_ERRORS = re.compile(
    r"\b(raises?|refus\w*|reject\w*|errors?|fails?|failed|failure|invalid|not found|unknown|never raises"
    r"|(None|False|empty) (when|where|if|for|without|unless))\b",
    re.IGNORECASE,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name, its text and what it parses to."""

    name: str
    path: Path
    text: str
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class Structure:
    """The figures of one measurement. Shares are percentages."""

    modules: int
    lines: int
    module_median: int
    module_p90: int
    longest_module: int
    import_lines_share: float
    one_importer_share: float
    functions: int
    private_used_once: int
    private_used_once_share: float
    private_called_once_share: float
    longest_function: str
    functions_too_long: int
    public_docstrings: int
    naming_units_share: float
    naming_errors_share: float
    broad_excepts: int
    test_lines_a_line: float


def production(root: Path) -> list[Path]:
    """Every production source file below `root`, in order."""
    packages = [
        place
        for place in root.iterdir()
        if (place / "__init__.py").exists() and place.name not in NOT_PRODUCTION
    ]
    return sorted(file for package in packages for file in package.rglob("*.py"))


def read(files: Iterable[Path], root: Path) -> list[Module]:
    """The modules of `files`. Raises SyntaxError for one that is no Python."""
    modules: list[Module] = []
    for path in files:
        parts = list(path.relative_to(root).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules.append(Module(name, path, text, ast.parse(text)))
    return modules


def imported(module: Module) -> Iterator[str]:
    """Dotted names that the module may import: modules, and names in them, which may be modules too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions_of(module: Module) -> list[Function]:
    return [node for node in ast.walk(module.tree) if isinstance(node, Function)]


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def used_once(module: Module) -> tuple[int, int]:
    """How many private functions and methods are named in one other place of their module, and how many of
    these are called there: the others are handed over by name, as entries of tables and callbacks are."""
    words = Counter(re.findall(r"\w+", module.text))
    private = [node.name for node in functions_of(module) if re.match(r"_[^_]", node.name)]
    once = [name for name in private if words[name] == 2]
    called = {ast.unparse(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    called = {name.rpartition(".")[2] for name in called}
    return len(once), sum(name in called for name in once)


def docstrings(module: Module) -> Iterator[str]:
    """The docstrings of public classes and functions, methods of public classes included."""
    places: list[ast.AST] = [module.tree]
    while places:
        for node in ast.iter_child_nodes(places.pop()):
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                if text := ast.get_docstring(node):
                    yield text
                if isinstance(node, ast.ClassDef):
                    places.append(node)


def import_lines(module: Module) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def broad_excepts(module: Module) -> int:
    return sum(
        isinstance(node, ast.ExceptHandler)
        and (
            node.type is None
            or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"})
        )
        for node in ast.walk(module.tree)
    )


def share(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def measure(modules: list[Module], everything: list[Module], test_lines: int) -> Structure:
    """The figures of `modules`. Importers are looked for in `everything`."""
    importers = Counter(name for module in everything for name in {*imported(module)} if name != module.name)
    sizes = sorted(module.text.count("\n") for module in modules)
    lines = sum(sizes)
    counted = [module for module in modules if module.path.name != "__init__.py"]
    functions = [
        (length(node), f"{module.name}.{node.name}") for module in modules for node in functions_of(module)
    ]
    once, called_once = map(sum, zip(*map(used_once, modules), strict=True))
    texts = [text for module in modules for text in docstrings(module)]
    longest = max(functions, default=(0, "none"))
    return Structure(
        modules=len(modules),
        lines=lines,
        module_median=round(median(sizes)),
        module_p90=sizes[int(len(sizes) * 0.9)],
        longest_module=sizes[-1],
        import_lines_share=share(sum(map(import_lines, modules)), lines),
        one_importer_share=share(sum(importers[module.name] == 1 for module in counted), len(counted)),
        functions=len(functions),
        private_used_once=once,
        private_used_once_share=share(once, len(functions)),
        private_called_once_share=share(called_once, len(functions)),
        longest_function=f"{longest[1]} {longest[0]}",
        functions_too_long=sum(size > LONGEST_FUNCTION for size, _ in functions),
        public_docstrings=len(texts),
        naming_units_share=share(sum(bool(_UNITS.search(text)) for text in texts), len(texts)),
        naming_errors_share=share(sum(bool(_ERRORS.search(text)) for text in texts), len(texts)),
        broad_excepts=sum(map(broad_excepts, modules)),
        test_lines_a_line=round(test_lines / lines, 2) if lines else 0.0,
    )


def main() -> None:
    places = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    root = next(
        (Path(a.removeprefix("--root=")).resolve() for a in sys.argv if a.startswith("--root=")), ROOT
    )
    everything = read(production(root), root)
    chosen = [m for m in everything if not places or any(m.path.is_relative_to(root / p) for p in places)]
    tests = [root / "tests" / place for place in places] if places else [root / "tests"]
    test_lines = sum(file.read_text("utf-8").count("\n") for place in tests for file in place.rglob("*.py"))
    figures = asdict(measure(chosen, everything, test_lines))
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<26}{value}")


if __name__ == "__main__":
    main()

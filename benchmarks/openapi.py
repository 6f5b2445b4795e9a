"""`python -m benchmarks.openapi BEFORE.json AFTER.json`: by kind, what differs between two OpenAPI documents.

Each line is a count of operations and a place within them: `+` was added, `-` removed, `~` changed. What only
one of the documents has is named by itself.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

METHODS = frozenset({"get", "put", "post", "delete", "patch"})


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Nothing where the two are equal as JSON."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            inner = f"{place}/{key}"
            if key not in before:
                yield f"+ {inner}"
            elif key not in after:
                yield f"- {inner}"
            else:
                yield from differences(before[key], after[key], inner)
    elif before != after:
        yield f"~ {place}"


def operations(document: Mapping[str, Any]) -> dict[str, Any]:
    """By method and path."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


def main() -> None:
    before, after = (json.loads(Path(name).read_bytes()) for name in sys.argv[1:3])
    schemas = before["components"]["schemas"], after["components"]["schemas"]
    for name, (old, new) in {
        "operations": (operations(before), operations(after)),
        "schemas": schemas,
    }.items():
        common = old.keys() & new.keys()
        print(f"{name}: {len(common)} in both, {sum(old[key] == new[key] for key in common)} the same")
        print("  added:", ", ".join(sorted(new.keys() - old.keys())) or "none")
        print("  removed:", ", ".join(sorted(old.keys() - new.keys())) or "none")
        found = Counter(each for key in common for each in differences(old[key], new[key]))
        for each, count in sorted(found.items(), key=lambda item: (-item[1], item[0])):
            print(f"  {count:3} {each}")


if __name__ == "__main__":
    main()

"""`python -m benchmarks.compare BEFORE.json AFTER.json`: what changed between two runs, by CPU time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson


def _values(document: Any) -> dict[str, float]:
    """Every number that is worth comparing, lower being better."""
    rates = {
        f"{r['scene']}, {r['tasks']} tasks: {r['scenario']}: CPU us": r["service_cpu_us"]
        for r in document["rates"]
    }
    figures = {f"{f['name']}: {f['unit'] or 'ratio'}": f["value"] for f in document["figures"]}
    trips = {f"{t['call']}: round trips": float(t["measured"]) for t in document["round_trips"]}
    return rates | figures | trips


def compared(before: dict[str, float], after: dict[str, float]) -> Iterator[str]:
    common = [name for name in before if name in after]
    width = max(map(len, common), default=0)
    for name in common:
        change = after[name] / before[name] - 1 if before[name] else 0.0
        yield f"{name:<{width}}  {before[name]:9.1f}  {after[name]:9.1f}  {change:+7.1%}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    before, after = (_values(orjson.loads(path.read_bytes())) for path in (options.before, options.after))
    print("\n".join(compared(before, after)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

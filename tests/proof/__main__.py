"""`make proof`: what the stores promise, held against processes that are killed and a network that is cut.

Needs `redis-server`. Prints a table of promises and findings; ends with 1 when one is broken, or a negative
control is not caught. Each proof has clients at work for some 4 seconds, with `--full` for 30.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.proof.finding import Finding, table
from tests.proof.proofs import PROOFS

SHORT_S, FULL_S = 4.0, 30.0


async def main(seconds: float, only: str) -> list[Finding]:
    findings: list[Finding] = []
    for proof in PROOFS:
        if only in proof.__name__:
            began = time.monotonic()
            findings += await proof(seconds)
            print(f"{proof.__name__}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return findings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make proof", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="clients at work for 30 s in each proof")
    parser.add_argument("--only", default="", help="proofs whose name holds this")
    options = parser.parse_args()
    found = asyncio.run(main(FULL_S if options.full else SHORT_S, options.only))
    print(table(found))
    for finding in found:
        if not finding.holds:
            for breach in finding.breaches[:10]:
                print(f"{finding.promise}: {breach.kind}: {breach.detail[:300]}")
    sys.exit(0 if all(finding.holds for finding in found) else 1)

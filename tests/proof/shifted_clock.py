"""A `flow-engine` whose clock is wrong: `python -m tests.proof.shifted_clock SECONDS ARGUMENTS...`"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from flow_engine.ports.clock import SystemClock
from service.cli.main import app


def main() -> None:
    shift = timedelta(seconds=float(sys.argv[1]))
    SystemClock.now = lambda _: datetime.now(UTC) + shift  # type: ignore[method-assign]
    app(args=sys.argv[2:], prog_name="flow-engine")


if __name__ == "__main__":
    main()

"""Write what is expected of the golden calls anew, from what the shipped examples do now.

    python -m tests.channels.voice.golden_record [NAME ...]

Without names, all of them. Read the difference before you keep it: it is what changes for everybody's calls.
"""

from __future__ import annotations

import sys

import orjson

from service.logs import configure_logging
from tests.channels.voice.config.original_configs import example
from tests.channels.voice.golden_calls import GOLDENS, Golden
from tests.channels.voice.golden_texts import Reading, merged

LANGUAGE = "/agent/language"


def record(golden: Golden) -> bytes:
    """One expectation for the example, and for a config of its kind that names no language."""
    shipped, bare = example(golden.kind), example(golden.kind)
    language = bare["agent"].pop("language")
    steps = [Reading(config).referred(golden.played(config)) for config in (shipped, bare)]
    return b"".join(orjson.dumps(step) + b"\n" for step in merged(*steps, LANGUAGE, language))


def main(names: list[str]) -> None:
    unknown = set(names) - {golden.name for golden in GOLDENS}
    if unknown:
        sys.exit(f"no golden call {sorted(unknown)}; there are {[golden.name for golden in GOLDENS]}")
    configure_logging("critical")
    for golden in GOLDENS:
        if not names or golden.name in names:
            golden.expected_file.write_bytes(record(golden))
            print(golden.expected_file.name)


if __name__ == "__main__":
    main(sys.argv[1:])

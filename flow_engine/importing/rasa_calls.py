"""What a `call` of an MCP tool in Rasa's flows passes and sets."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from flow_engine.importing import drafts, foreign
from flow_engine.json_paths import PathRefused, read_path

_RESULT: Final = re.compile(r"(?:\{\{\s*)?result\.structuredContent(?P<path>[.\[][^{}\s]*)(?:\s*\}\})?")


class CallMapping(foreign.Foreign):
    input: tuple[Mapping[str, str], ...] = ()
    output: tuple[Mapping[str, str], ...] = ()

    def arguments(self, draft: drafts.Draft, place: foreign.Place) -> Iterator[tuple[str, str]]:
        """Variables by the tool's parameters."""
        for number, row in enumerate(self.input):
            if (slot := row.get("slot", "")) in draft.variables and "param" in row:
                yield row["param"], slot
            else:
                draft.dropped((*place, "input", number), f"there is no slot {slot!r} for a parameter")

    def results(self, draft: drafts.Draft, place: foreign.Place) -> Iterator[tuple[str, str]]:
        """JSONPaths by variable, without those that lead into no structured result."""
        for number, row in enumerate(self.output):
            slot, value = row.get("slot", ""), row.get("value", "")
            path = _RESULT.fullmatch(value.strip())
            try:
                if path is None or slot not in draft.variables:
                    raise PathRefused("accepted is a slot, and a value result.structuredContent.x")
                read_path(f"${path['path']}")
            except PathRefused as refused:
                draft.dropped((*place, "output", number), f"{value!r} for {slot!r}: {refused}")
            else:
                yield slot, f"${path['path']}"

"""Readers of the memory's tables, to compare cells with what was written (F21)."""

from __future__ import annotations

import re

import toon_format

from flow_engine.runtime.tables import Row

HEAD = ("|var|property|value|", "|-|-|-|")
_MEANINGS = {"\\": "\\", "|": "|", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|(.?))", re.DOTALL)
_CELL = r"([^|\\]*(?:\\.[^|\\]*)*)"
_ROW = re.compile(rf"\|{_CELL}\|{_CELL}\|{_CELL}\|")


def parse_markdown(text: str) -> list[Row]:
    """White space around cells is not theirs: other writers pad them."""
    head, lines = text.split("\n")[:2], text.split("\n")[2:]
    assert tuple(head) == HEAD
    rows: list[Row] = []
    for line in lines:
        cells = _ROW.fullmatch(line)
        assert cells is not None, line
        var, prop, value = (_ESCAPE.sub(_meaning, cell.strip()) for cell in cells.groups())
        rows.append((var, prop, value))
    return rows


def _meaning(found: re.Match[str]) -> str:
    code, short = found.groups()
    return _MEANINGS[short] if code is None else chr(int(code, 16))


def parse_toon(text: str) -> list[Row]:
    document = toon_format.decode(text)
    assert isinstance(document, dict)
    rows = document["memory"]
    assert isinstance(rows, list)
    return [(row["var"], row["property"], row["value"]) for row in rows]  # type: ignore[index,call-overload]

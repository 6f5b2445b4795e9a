"""The three configs that the contract is written around, as their users wrote them, where at hand."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "channels" / "voice" / "config" / "examples"
_SOURCE = ROOT.parent / "shared" / "seeds" / "000_d33a27299775d5ef.txt"
_JSON_BLOCK = re.compile(r"```json\n(.*?)```", re.DOTALL)

HAS_ORIGINALS = _SOURCE.exists()
KINDS = ("restaurant", "switchboard", "medical")
_TYPES = {"restaurant": "restaurant", "switchboard": "standard", "medical": "medical"}


def original(kind: str) -> dict[str, Any]:
    """A fresh copy of the original config of this kind; the test is skipped where it is not at hand."""
    if not HAS_ORIGINALS:
        pytest.skip("the original configs are not at hand")
    return json.loads(_originals()[_TYPES[kind]])


def example(kind: str) -> dict[str, Any]:
    return json.loads((EXAMPLES / f"{kind}.json").read_text("utf-8"))


@cache
def _originals() -> dict[str, str]:
    """Whole configs only: the source also shows parts of one, and one with gaps."""
    found: dict[str, str] = {}
    for block in _JSON_BLOCK.findall(_SOURCE.read_text("utf-8")):
        try:
            value = json.loads(block)
        except ValueError:
            continue
        if value.get("version") == "2.0" and value.get("tools"):
            found[value["agent"]["type"]] = block
    return found

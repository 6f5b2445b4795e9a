r"""How the memory is written into a prompt, as a markdown table or as TOON (F21).

Both forms hold the same rows of three cells: the variable's name, a property, a value. Readers get back
exactly the same cells. A prompt holds what callers said, so no cell may end its row or start another.

Markdown cells escape `\` and `|` with a backslash, line feed, carriage return and tab as `\n`, `\r` and
`\t`, and as `\uXXXX` every other control character, every character that some reader takes for the end
of a line, and white space at either end of a cell, which readers trim. TOON quotes such cells itself.
Cells are valid Unicode: values and descriptions with unpaired surrogates are refused when written.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import orjson
import toon_format

from flow_engine.runtime.memory import MemoryEntry
from flow_engine.values import JsonValue
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import VariableType

Row = tuple[str, str, str]

_COLUMNS = ("var", "property", "value")
_HEAD = ("|var|property|value|", "|-|-|-|")
_TOON_KEY = "memory"

_UNSAFE = re.compile(r"[\\|\x00-\x1f\x7f-\x9f\u2028\u2029]|\A\s|\s\Z")
_SHORT_ESCAPES = {"\\": r"\\", "|": r"\|", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def memory_rows(
    merged: Mapping[str, MemoryEntry],
    specs: Iterable[VariableSpec],
    remarks: Mapping[str, Sequence[tuple[str, str]]] = {},
) -> list[Row]:
    """The rows of the variables that have a value, in the flow's order, each followed by the `remarks` on it:
    property and value by variable id.

    A described value has a row for each property. Any other has one row with an empty property: text
    stands as it is, a phone number as its E.164 number, everything else as JSON.
    """
    rows: list[Row] = []
    for spec in specs:
        entry = merged.get(spec.id)
        if entry is None or entry.value is None:
            continue
        if entry.description_for_llm:
            rows.extend((spec.name, part.name, part.value) for part in entry.description_for_llm)
        else:
            rows.append((spec.name, "", value_text(spec.type, entry.value)))
        if remarks:
            rows.extend((spec.name, prop, value) for prop, value in remarks.get(spec.id, ()))
    return rows


def value_text(variable_type: VariableType, value: JsonValue) -> str:
    """A canonical value as a person would read it in a sentence. E.164 for a phone number, JSON for what is
    no text."""
    if variable_type == "phone" and isinstance(value, dict):
        value = value.get("number")
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def render_markdown(rows: Sequence[Row]) -> str:
    """The table, without a line end after the last row. No rows: the two head lines alone."""
    lines = ["|".join(row) for row in rows]
    # Nearly every table is plain, and telling so at once costs a tenth of looking at each cell.
    body = "|\n|".join(lines)
    text = "|".join(lines)
    plain = text.isprintable() and "\\" not in text and text.count("|") == 3 * len(lines) - 1
    if lines and not (plain and " |" not in text and "| " not in text and text.strip() == text):
        body = "|\n|".join(["|".join(map(_escaped, row)) for row in rows])
    return "\n".join((*_HEAD, f"|{body}|")) if lines else "\n".join(_HEAD)


def _escaped(cell: str) -> str:
    # Telling that a cell is plain costs a fifth of the search that escaping needs.
    if cell.isprintable() and "|" not in cell and "\\" not in cell and cell.strip() == cell:
        return cell
    return _UNSAFE.sub(lambda found: _SHORT_ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}", cell)


def render_toon(rows: Sequence[Row]) -> str:
    """`memory[N]{var,property,value}:` and a line a row. No rows: `memory: []`."""
    return toon_format.encode({_TOON_KEY: [dict(zip(_COLUMNS, row, strict=True)) for row in rows]})

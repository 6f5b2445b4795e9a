"""What the page about flow documents has of the schema, types of variables and objects:
`python -m flow_engine.documents.page FILE` writes them into it anew. The prose around them is the file's own.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flow_engine.documents.json_schema import version_schema
from flow_engine.values import VALUE_KINDS

_TYPES = "\n| type | canonical form | a tool gets |\n|---|---|---|\n"
_OBJECTS = "\n## Objects\n\n"

_FORMS = {
    "string": "text as it was given, at most 64 KiB",
    "number": "a JSON number of at most 64 bits; a decimal that no float equals is refused",
    "boolean": "`true` or `false`",
    "enum": "the member of `enumValues` that was meant",
    "date": "`YYYY-MM-DD`, or `YYYY-MM-DDTHH:MM:SS[.ffffff]Z` in UTC when a time was given",
    "phone": '`{"country": "IT", "type": "mobile", "number": "+39…"}`, E.164',
    "email": "`local@domain`, the domain in lower case and ASCII",
    "custom": "any JSON, at most 64 levels deep; written by tools only",
}


def written_anew(page: str) -> str:
    """The page as Markdown with the parts that the schema tells. Raises KeyError for a type of variable whose
    form is not described here, ValueError for another page."""
    schema = version_schema()
    types = "\n".join(
        f"| `{name}` | {_FORMS[name]} | {kind.handed_over} |" for name, kind in VALUE_KINDS.items()
    )
    objects = {"Flow version": schema, **schema["$defs"]}
    before, rest = page.split(_TYPES)
    prose = rest[rest.index("\n\n") : rest.index(_OBJECTS)]
    sections = "\n\n".join("\n".join(_section(name, described)) for name, described in objects.items())
    return f"{before}{_TYPES}{types}{prose}{_OBJECTS}{sections}\n"


def _section(name: str, described: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if name != "Flow version" and "description" in described:
        yield f"{described['description']}\n"
    properties: dict[str, Any] = described.get("properties", {})
    if not properties:
        yield "Any property may stand here."
        return
    required = described.get("required", ())
    yield "| property | type | required | meaning |"
    yield "|---|---|---|---|"
    for key, value in properties.items():
        kind = _type(value).replace("|", "\\|")
        given = value.get("default")
        shown = "{…}" if isinstance(given, dict) else str(given)
        shown = shown.lower() if isinstance(given, bool) else shown
        default = "" if given in (None, {}) else f" Default: `{shown}`."
        needed = "yes" if key in required else ""
        yield f"| `{key}` | {kind} | {needed} | {value['description']}{default} |"


def _type(value: dict[str, Any]) -> str:
    """A property's type as people read it: `text`, `list of [Task](#task)`, `text | number`."""
    if "$ref" in value:
        name = str(value["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in value:
        return " | ".join(f"`{member}`" for member in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        return " | ".join(_type(option) for option in value["anyOf"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    if isinstance(value.get("additionalProperties"), dict):
        return f"object of {_type(value['additionalProperties'])} by key"
    names = {
        "string": "text",
        "object": "object",
        "number": "number",
        "boolean": "true or false",
        "null": "`null`",
    }
    return names.get(str(value.get("type")), "any")


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(written_anew(page.read_text("utf-8")), "utf-8")

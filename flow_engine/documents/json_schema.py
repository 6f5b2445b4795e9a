"""The JSON Schema of a flow version, made from the models, for editors and other tools.

It gives a completed document the verdict that the models give it. What refers from one part of a document
to another (`checks.py`), and the size of the whole, no JSON Schema can tell.
"""

import re
import tomllib
from importlib.resources import files
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, NoDefault
from pydantic_core import core_schema

from flow_engine.documents.base import RequiredIf, ShapedBy, When, property_name
from flow_engine.documents.model import FlowVersion

SCHEMA_VERSION = "1.0.0"
SCHEMA_ID = f"urn:flow-engine:schema:flow-version:{SCHEMA_VERSION}"

_MEANINGS = TypeAdapter(dict[str, dict[str, str]]).validate_python(
    tomllib.loads(files("flow_engine.documents").joinpath("properties.toml").read_text("utf-8"))
)
_REQUIREMENT_MARK = re.compile(r"\s*\([A-Z]\d+(, [A-Z]\d+)*\)")


def version_schema() -> dict[str, Any]:
    """The schema of draft 2020-12. A fresh object at every call."""
    schema = FlowVersion.model_json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, "$id": SCHEMA_ID, **schema, "title": "Flow version"}


class SchemaGenerator(GenerateJsonSchema):
    """None stands for a missing property in the models; in JSON `null` is another value, and no default of
    what cannot be null."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        default = super().get_default_value(schema)
        return NoDefault if default is None and schema["schema"]["type"] != "nullable" else default


class _Generator(SchemaGenerator):
    """Adds the rules between properties as `if` and `then`, and leaves out what only Python readers need."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        fields = cast("type[BaseModel]", schema["cls"]).model_fields
        properties = cast("dict[str, Any]", made.get("properties", {}))
        meanings = _MEANINGS.get(schema["cls"].__name__, {})
        for name, field in fields.items():
            if isinstance(field.default, BaseModel):
                default = field.default.model_dump(mode="json", by_alias=True)
                properties[property_name(name)]["default"] = default
        rules = [rule for name, field in fields.items() for rule in _rules(name, field, properties)]
        if rules:
            # One `if` for all that follows from the same condition.
            joined: dict[tuple[str, tuple[str | bool, ...]], dict[str, Any]] = {}
            for when, then in rules:
                merged = joined.setdefault((when.attribute, when.values), {})
                merged["required"] = [*merged.get("required", ()), *then.get("required", ())]
                merged["properties"] = {**merged.get("properties", {}), **then.get("properties", {})}
            schemas: list[JsonSchemaValue] = []
            for (attribute, values), then in joined.items():
                key = property_name(attribute)
                is_one_of = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
                condition = {"properties": {key: is_one_of}, "required": [key]}
                schemas.append({"if": condition, "then": {name: part for name, part in then.items() if part}})
            made["allOf"] = schemas
        for name, meaning in meanings.items():
            properties[name]["description"] = meaning
        if "description" in made:
            first_paragraph = " ".join(made["description"].partition("\n\n")[0].split())
            made["description"] = _REQUIREMENT_MARK.sub("", first_paragraph)
        return made


def _rules(name: str, field: FieldInfo, properties: dict[str, Any]) -> list[tuple[When, dict[str, Any]]]:
    rules: list[tuple[When, dict[str, Any]]] = []
    key = property_name(name)
    for mark in field.metadata:
        if isinstance(mark, RequiredIf):
            rules.append((mark.when, {"required": [key]}))
        elif isinstance(mark, ShapedBy):
            shapes = properties[key].get("anyOf") or [{"$ref": properties[key]["$ref"]}]
            rules += [
                (when, {"properties": {key: shape}})
                for when, shape in zip(mark.conditions, shapes, strict=True)
            ]
            properties[key] = {} if mark.always is None else {"type": mark.always}
    return rules

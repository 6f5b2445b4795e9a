"""The JSON Schema of configs, made from the models, for editors and for programs that write configs.

It tells the shape. Whether a template or a condition can be read, and what one field asks of another, is for
the loader to tell.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from channels.http_tools.documents import Answer, Body, Params, ToolConfig
from channels.voice.config.models import FieldPath, InlineTools, Session, Tenant, VoiceConfig

SCHEMA_ID: Final = "urn:flow-engine:schema:voice-config:2.0"


def config_schema() -> dict[str, Any]:
    """The schema of draft 2020-12. A fresh object at every call."""
    schema = VoiceConfig.model_json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, "$id": SCHEMA_ID, **schema, "title": "Voice agent config"}


def _read(compiled: Any) -> object:
    """The function that reads a compiled field, by which the field is known again in the core schema."""
    return get_args(compiled)[1].read


_ANYTHING: Final[JsonSchemaValue] = {}
_DECLARATIONS: Final[JsonSchemaValue] = {
    "type": ["array", "null"],
    "items": {"type": "object"},
    "description": "Function declarations: type, name, description, parameters",
}
_SHAPES: Final = {
    _read(Params): {"type": "object"},
    _read(Tenant): {"type": "object"},
    _read(Body): _ANYTHING,
    _read(Answer): _ANYTHING,
    _read(InlineTools): _DECLARATIONS,
    _read(FieldPath): {"type": ["string", "null"]},
}
_UNIONS: Final = {_read(union): get_args(get_args(union)[0]) for union in (Session, ToolConfig)}


class _Generator(GenerateJsonSchema):
    """Knows what a compiled field is written as: text, where nothing else is said here."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        read = schema["function"]["function"]
        if read in _UNIONS:
            return {
                "oneOf": [self.generate_inner(branch.__pydantic_core_schema__) for branch in _UNIONS[read]]
            }
        return dict(_SHAPES.get(read, {"type": "string"}))

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        return {**made, "additionalProperties": False} if "patternProperties" in made else made

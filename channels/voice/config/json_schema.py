"""The JSON Schema of configs, made from the models, for editors and for programs that write configs."""

from typing import Any, ClassVar, Final, get_args

from pydantic.json_schema import JsonSchemaValue

from channels.http_tools.documents import ToolConfig
from channels.http_tools.json_schema import SHAPES, ConfigSchema, read_by, schema_of
from channels.voice.config.models import FieldPath, InlineTools, Session, Tenant, Voice, VoiceConfig

SCHEMA_ID: Final = "urn:flow-engine:schema:voice-config:2.0"

_DECLARATIONS: Final[JsonSchemaValue] = {
    "type": ["array", "null"],
    "items": {"type": "object"},
    "description": "Function declarations: type, name, description, parameters",
}


_VOICE: Final[JsonSchemaValue] = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "properties": {"id": {"type": "string", "minLength": 1}},
            "required": ["id"],
            "additionalProperties": False,
        },
    ]
}


class _Generator(ConfigSchema):
    shapes: ClassVar = {
        **SHAPES,
        read_by(Tenant): {"type": "object"},
        read_by(InlineTools): _DECLARATIONS,
        read_by(Voice): _VOICE,
        read_by(FieldPath): {"type": ["string", "null"]},
    }
    unions: ClassVar = {read_by(union): get_args(get_args(union)[0]) for union in (Session, ToolConfig)}


def config_schema() -> dict[str, Any]:
    """The schema of draft 2020-12. A fresh object at every call."""
    return schema_of(VoiceConfig, _Generator, SCHEMA_ID, "Voice agent config")

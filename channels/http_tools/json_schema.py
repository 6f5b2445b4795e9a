"""The JSON Schema of a config whose fields are compiled when they are read: what each is written as.

It tells the shape. Whether a template or a condition can be read, and what one field asks of another, is for
the loader to tell.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from channels.http_tools.documents import Answer, Body, Params


def read_by(compiled: Any) -> object:
    """The function that reads a compiled field, by which the field is known again in the core schema."""
    return get_args(compiled)[1].read


_ANYTHING: Final[JsonSchemaValue] = {}
SHAPES: Final[Mapping[object, JsonSchemaValue]] = {
    read_by(Params): {"type": "object"},
    read_by(Body): _ANYTHING,
    read_by(Answer): _ANYTHING,
}


class ConfigSchema(GenerateJsonSchema):
    """Knows what a compiled field is written as: text, where nothing else is said in `shapes` and `unions`,
    which are by the function that reads the field."""

    shapes: ClassVar[Mapping[object, JsonSchemaValue]] = SHAPES
    unions: ClassVar[Mapping[object, tuple[type[BaseModel], ...]]] = {}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        read = schema["function"]["function"]
        if read in self.unions:
            branches = [branch.__pydantic_core_schema__ for branch in self.unions[read]]
            return {"oneOf": [self.generate_inner(branch) for branch in branches]}
        return dict(self.shapes.get(read, {"type": "string"}))

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        return {**made, "additionalProperties": False} if "patternProperties" in made else made


def schema_of(
    model: type[BaseModel], generator: type[ConfigSchema], identifier: str, title: str
) -> dict[str, Any]:
    """The schema of draft 2020-12. A fresh object at every call."""
    schema = model.model_json_schema(schema_generator=generator)
    return {"$schema": generator.schema_dialect, "$id": identifier, **schema, "title": title}

"""Arguments of tools against JSON Schemas: verdicts, and how much a stranger's schema may cost."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from adapters.models.argument_schemas import MOST_PARTS, CannotBeChecked, problems, schema_fault

Schema = Mapping[str, Any]

NAMES = st.sampled_from(["a", "b", "ab"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 1.5, -3, "", "a", "ab", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    types = st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object"])
    several, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=2)
    names, counts, numbers = (
        st.lists(NAMES, unique=True),
        st.integers(0, 3),
        st.sampled_from([-1, 0, 1, 1.5, 2]),
    )
    sizes = {f"{end}{what}": counts for end in ("min", "max") for what in ("Length", "Items", "Properties")}
    limits = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), numbers)
    patterns = st.sampled_from(["a", "^a$", "b+", "^[0-9]"])
    keywords: dict[str, st.SearchStrategy[Any]] = {
        **{
            "type": types | st.lists(types, min_size=1, unique=True),
            "enum": st.lists(VALUES),
            "const": VALUES,
        },
        **{"required": names, "dependentRequired": st.dictionaries(NAMES, names, max_size=2)},
        **{"properties": named, "patternProperties": st.dictionaries(patterns, inner, max_size=2)},
        **dict.fromkeys(
            ("additionalProperties", "propertyNames", "items", "not", "if", "then", "else"), inner
        ),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **{"uniqueItems": st.booleans(), "pattern": patterns, "multipleOf": st.sampled_from([1, 0.5, 2])},
        **{"$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]), "description": st.just("words")},
        **sizes,
        **limits,
    }
    given_ones = [st.tuples(st.just(name), values) for name, values in keywords.items()]
    return st.lists(st.one_of(given_ones), max_size=5).map(dict)


ANY_SCHEMA = st.recursive(st.booleans() | schemas(st.booleans()), schemas, max_leaves=5)


@given(schemas(ANY_SCHEMA), st.dictionaries(NAMES, VALUES, max_size=3))
def test_verdicts_are_those_of_json_schema(schema: dict[str, Any], arguments: dict[str, Any]) -> None:  # M9
    schema["$defs"] = {
        "a": {"type": ["string", "integer"]},
        "b": {"properties": {"a": {"$ref": "#/$defs/a"}}},
    }
    assert schema_fault(schema) is None
    fits = next(problems(schema, arguments), None) is None
    assert fits == Draft202012Validator(schema).is_valid(arguments)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"type": []},
        {"properties": {"a": {"type": 5}}},
        {"properties": {"a": 5}},
        {"properties": []},
        {"required": "a"},
        {"required": [1]},
        {"items": [{"type": "string"}]},
        {"anyOf": []},
        {"minLength": "1"},
        {"minimum": True},
        {"multipleOf": 0},
        {"$ref": 5},
        {"pattern": 5},
        {"uniqueItems": "yes"},
    ],
)
def test_a_schema_that_is_none_is_refused(schema: Schema) -> None:  # M9
    assert not Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(schema)
    assert schema_fault(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "text"}}}, "#/properties/a/type"),
        ({"anyOf": [True, {"enum": 1}]}, "#/anyOf/1/enum"),
        ({"$ref": "#/default", "default": {"minLength": "x"}}, "#/default/minLength"),
    ],
)
def test_a_fault_is_told_with_its_place(schema: Schema, place: str) -> None:
    assert str(schema_fault(schema)).startswith(f"{place}: accepted is ")


def doubled(levels: int) -> dict[str, Any]:
    """A schema whose check doubles with every level."""
    both = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**both, f"d{levels}": {}}}


LONG = [[number] for number in range(30_000)]
PATTERNS: dict[str, Any] = {f"^z{number}$": {} for number in range(4_000)}
SHORT_NAMES = {str(number): 1 for number in range(8_000)}
ENDS_IN_ANOTHER = "a" * 50_000 + "!"


@pytest.mark.parametrize(
    ("schema", "argument"),
    [
        (doubled(40), 1),
        (doubled(40) | {"$schema": "https://json-schema.org/draft/2020-12/schema"}, 1),
        ({"$ref": "#"}, 1),
        ({"properties": {"a": {"items": {"allOf": [{}] * 1_000}}}}, LONG),
        ({"properties": {"a": {"items": {"enum": list(range(4_000))}}}}, list(range(5_000, 9_000))),
        ({"properties": {"a": {"allOf": [{"const": LONG}] * 1_000}}}, LONG),
        ({"properties": {"a": {"allOf": [{"uniqueItems": True}] * 1_000}}}, LONG),
        ({"properties": {"a": {"pattern": "[a-z]{500}x"}}}, ENDS_IN_ANOTHER),
        ({"properties": {"a": {"patternProperties": PATTERNS}}}, SHORT_NAMES),
        ({"properties": {"a": {"patternProperties": PATTERNS, "additionalProperties": True}}}, SHORT_NAMES),
        ({"properties": {"a": {"anyOf": [{"allOf": [{"const": 1}] * 1_000}] * 4}}}, {"b": LONG}),
    ],
)
def test_what_takes_too_many_steps_is_not_checked(schema: Schema, argument: Any) -> None:  # M9
    """Each of these would take minutes; that this ends shows the bound."""
    assert schema_fault(schema) is None
    try:
        list(problems(schema, {"a": argument}))
    except (CannotBeChecked, RecursionError):
        return
    assert "anyOf" in str(schema)  # an argument that is like nothing there is told so at once


@pytest.mark.parametrize("schema_key", ["properties", "not"])
def test_another_dialect_deep_in_a_schema_changes_nothing(schema_key: str) -> None:
    hostile = {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "(a+)+$"}
    schema = {"properties": {"a": {"not": hostile} if schema_key == "not" else hostile}}
    found = list(problems(schema, {"a": ENDS_IN_ANOTHER}))
    assert bool(found) == (schema_key == "properties")


def test_many_values_of_unlike_types_are_compared_in_linear_time() -> None:
    mixed = [value for number in range(10_000) for value in (number, str(number))]
    schema = {"properties": {"a": {"uniqueItems": True}}}
    assert not list(problems(schema, {"a": mixed}))
    assert list(problems(schema, {"a": [*mixed, 1.0]}))


@pytest.mark.parametrize("pattern", ["(?=a)b", "(", r"\u00e9"])
def test_a_pattern_that_re2_does_not_take_refuses_nothing(pattern: str) -> None:
    assert not list(problems({"properties": {"a": {"pattern": pattern}}}, {"a": "x"}))


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{}] * (MOST_PARTS + 1)},
        {"required": [str(number) for number in range(MOST_PARTS + 1)]},
        {"required": [value for number in range(MOST_PARTS) for value in (number, str(number))]},
    ],
)
def test_a_schema_has_a_limited_number_of_parts(schema: Schema) -> None:
    assert str(MOST_PARTS) in str(schema_fault(schema))


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/a", "http://[", "#a", "#/$defs/b", "#/required"])
def test_a_reference_to_elsewhere_cannot_be_checked(reference: str) -> None:
    with pytest.raises(CannotBeChecked, match="there is no"):
        list(problems({"properties": {"a": {"$ref": reference}}, "$defs": {"a": True}}, {"a": 1}))


def test_a_message_stays_short_whatever_was_sent() -> None:
    name = "n" * 100_000
    schema = {"properties": {name: {"items": {"const": "c" * 100_000}}}, "enum": [1]}
    told = list(problems(schema, {name: ["x" * 100_000]}))
    assert told
    assert max(map(len, told)) < 1_000


def test_an_integer_beyond_all_floats_is_checked_as_any_other() -> None:  # M9
    whole, half = ({"properties": {"n": {"multipleOf": of}}} for of in (3, 0.5))
    assert list(problems(whole, {"n": 10**400})) != []
    assert list(problems(half, {"n": 10**400})) == []


@pytest.mark.parametrize(
    ("value", "of", "fits"), [(19.99, 0.01, True), (4.35, 0.05, True), (0.005, 0.01, False)]
)
def test_a_price_in_cents_is_a_multiple_as_it_is_written(value: float, of: float, fits: bool) -> None:  # M9
    assert (list(problems({"properties": {"n": {"multipleOf": of}}}, {"n": value})) == []) is fits

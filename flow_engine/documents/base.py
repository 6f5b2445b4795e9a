"""What the document models are built from: their base, the rules of presence, lists of objects.

As JSON Schema has it, an explicit `null` is not the same as a missing property.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin

import pydantic
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError

T = TypeVar("T")


# Attributes whose name is not simply the property's in snake case.
_OWN_NAMES = {"id": "_id", "routing_given": "routingParameters"}


@cache
def property_name(attribute: str) -> str:
    """The JSON property that an attribute of a document model stands for."""
    return _OWN_NAMES.get(attribute) or to_camel(attribute)


class Document(pydantic.BaseModel):
    """Base of all document models: frozen, camelCase outside, unknown properties kept in `model_extra`.

    `model_fields_set` names exactly the attributes that the document really holds, and
    `model_dump(by_alias=True, exclude_unset=True)` gives the document back.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="allow", alias_generator=property_name)

    ALSO_READ: ClassVar[tuple[str, ...]] = ()
    """Properties that are read though the schema leaves them unread."""
    OPEN: ClassVar[bool] = False
    """Whether any property may stand here."""

    @classmethod
    @cache
    def accepted_properties(cls) -> tuple[str, ...]:
        """The properties that mean something in such an object; none where any property may stand."""
        return () if cls.OPEN else (*map(property_name, cls.model_fields), *cls.ALSO_READ)

    @classmethod
    @cache
    def attributes_with(cls, *kinds: type) -> tuple[str, ...]:
        """The attributes in whose values objects of these types may stand; empty where there are none."""
        annotations = ((name, field.annotation) for name, field in cls.model_fields.items())
        return tuple(
            name for name, a in annotations if any(t is object or issubclass(t, kinds) for t in _types_in(a))
        )


def _types_in(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    elif get_origin(annotation) is not Literal:
        parts = get_args(annotation)
        for part in parts[:1] if get_origin(annotation) is Annotated else parts:
            yield from _types_in(part)


# --- presence ---------------------------------------------------------------------------------


class _NotNull:
    """Validates a nullable attribute as its inner type: `None` means missing, `null` is refused."""

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", cast("dict[str, object]", handler(source))["schema"])


Maybe = Annotated[T | None, _NotNull()]
"""A property that may be missing, but not `null`."""


@dataclass(frozen=True, slots=True)
class _Absent:
    """Stands for a missing property until the rule of presence has been asked."""

    neutral: object


def absent(neutral: object = None) -> Any:
    """Default of a property with `RequiredIf`: what the attribute holds where the property is missing
    and may be. It does not count as set."""
    return pydantic.Field(default_factory=partial(_Absent, neutral), validate_default=True)


class When:
    """A condition on a property declared earlier in the same object: it is there, sound, and one of these."""

    def __init__(self, attribute: str, *values: str | bool) -> None:
        self.attribute = attribute
        self.values = values

    def holds(self, data: Mapping[str, object]) -> bool:
        return data.get(self.attribute) in self.values


@dataclass(frozen=True, slots=True)
class RequiredIf:
    """The property must be there when the condition holds.

    A rule at the field, not at the model: pydantic runs model rules only when all fields are sound, and
    a rejection lists every error at once. Needs `absent(...)` as the default.
    """

    when: When
    reason: str

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return pydantic.WrapValidator(self._check).__get_pydantic_core_schema__(source, handler)

    def _check(
        self, value: object, handler: pydantic.ValidatorFunctionWrapHandler, info: pydantic.ValidationInfo
    ) -> object:
        if not isinstance(value, _Absent):
            return handler(value)
        if self.when.holds(info.data):
            # The error of a missing value carries the attribute's name, so the property's is told here.
            name = property_name(info.field_name or "")
            raise PydanticCustomError(
                "required_here", "is required {reason}", {"property": name, "reason": self.reason}
            )
        return value.neutral


@dataclass(frozen=True, slots=True)
class ShapedBy:
    """Tells the JSON Schema which of a property's shapes another property chooses: the conditions stand in
    the order of the shapes. `always` is the JSON type whatever was chosen, None for any."""

    conditions: tuple[When, ...]
    always: str | None


# --- lists of objects -------------------------------------------------------------------------


@dataclass(slots=True)
class ErrorBudget:
    """How many more errors a validation reports. Given as its context; without one, all of them."""

    left: int


def _within_budget(
    value: object, handler: pydantic.ValidatorFunctionWrapHandler, info: pydantic.ValidationInfo
) -> object:
    budget = info.context
    if not isinstance(budget, ErrorBudget):
        return handler(value)
    if budget.left <= 0:
        return value  # the document is refused already, the rest of it need not be read
    before = budget.left
    try:
        return handler(value)
    except pydantic.ValidationError as error:
        # Counted from before, since what is inside has taken its share of the budget as well.
        budget.left = before - error.error_count()
        raise


Items = tuple[Annotated[T, pydantic.WrapValidator(_within_budget)], ...]
"""An array of objects. Three bytes of an empty object break up to eight rules: a hostile document of a
megabyte would otherwise take many seconds to be told two million errors."""


Entries = dict[pydantic.StrictStr, Annotated[T, pydantic.WrapValidator(_within_budget)]]
"""An object whose keys are the document's own, with an object or a text for each."""


def listed_within_budget(accepts: Callable[[object], bool]) -> pydantic.BeforeValidator:
    """For an array of scalars, of which `accepts` tells the sound ones: the array up to where its errors use
    up the budget. One call for all items, since sound arrays hold tens of thousands."""

    def cut(value: object, info: pydantic.ValidationInfo) -> object:
        budget = info.context
        if not isinstance(budget, ErrorBudget) or not isinstance(value, list):
            return value
        items = cast("list[object]", value)
        if len(items) <= budget.left:
            return items
        wrong = (number for number, item in enumerate(items) if not accepts(item))
        return items[: next(islice(wrong, max(budget.left, 0), None), len(items))]

    return pydantic.BeforeValidator(cut)

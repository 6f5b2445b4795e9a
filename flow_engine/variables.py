"""The variables of a flow, as it declares them. What they may hold is the rules' of `values.py`."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from flow_engine.vocabulary import Precedence, SensitiveKind, VariableType


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """A variable as the flow declares it. `enum_values` is empty for every type but enum. `id` and `name`
    have at most 512 characters. What is `sensitive` is shown as `masking` has it. A value is old after
    `fresh_for` seconds, None for never. `precedence` is None where nobody listens to the user once a tool has
    written."""

    id: str
    name: str
    type: VariableType
    prompt: str | None = None
    enum_values: tuple[str | int | float, ...] = ()
    sensitive: bool | SensitiveKind = False
    fresh_for: float | None = None
    precedence: Precedence | None = None

    @property
    def by_tools(self) -> bool:
        """Whether tools alone fill it: of a card number the dialogue keeps a mask."""
        return self.type == "custom" or self.sensitive == "card"


class VariableIndex:
    """The variables of one flow version, in the flow's order, found by `_id` or by name. `types` are those of
    the variables, one by one; `member_types` those of an enum's values, by `_id`."""

    __slots__ = ("_by_id", "_by_name", "member_types", "types")

    def __init__(self, specs: Iterable[VariableSpec]) -> None:
        self._by_id = {spec.id: spec for spec in specs}
        self._by_name = {spec.name: spec for spec in self._by_id.values()}
        self.types = tuple(spec.type for spec in self._by_id.values())
        self.member_types = {spec.id: frozenset(map(type, spec.enum_values)) for spec in self._by_id.values()}

    @property
    def ids(self) -> Collection[str]:
        return self._by_id.keys()

    def __iter__(self) -> Iterator[VariableSpec]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def resolve(self, key: str) -> VariableSpec | None:
        """The variable whose `_id` is `key`, else the one of that name, else None."""
        return self._by_id.get(key) or self._by_name.get(key)

    def name_of(self, var_id: str) -> str:
        """How people and the model call the variable; an id that the flow lacks stands for itself."""
        spec = self._by_id.get(var_id)
        return var_id if spec is None else spec.name

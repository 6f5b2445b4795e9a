"""The grammar that all conditions share, with the operands left to each language.

    condition  =  comparisons joined by `and`, `or`, `not` and parentheses; `not` binds closest, then `and`
    comparison =  operand == != < <= > >= operand  |  operand [not] in [operand, ...]  |  operand

A condition is read into a small tree once, and nothing of it is ever executed. A language gives its operands,
what may stand behind `in` besides a list, and what its tree means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from flow_engine.conditions.lexing import Mistake, Reader

MAX_CHARS: Final = 2_000
MAX_NESTING: Final = 40

ORDERS: Final = ("<", "<=", ">", ">=")
COMPARISONS: Final = ("==", "!=", *ORDERS)
OPPOSITES: Final[Mapping[str, str]] = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
"""By sign, the one that holds for two comparable values exactly where it does not."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lone(Generic[T]):
    """An operand that stands alone. `text` is the part as it was written, here and below."""

    operand: T
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Comparison(Generic[T]):
    """`sign` is one of `COMPARISONS`."""

    left: T
    sign: str
    right: T
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Membership(Generic[T]):
    """`members` is a list that was written out, or one operand that has to be a list."""

    operand: T
    members: tuple[T, ...] | T
    inside: bool
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Not(Generic[T]):
    part: Node[T]


@dataclass(frozen=True, slots=True)
class All(Generic[T]):
    parts: tuple[Node[T], ...]


@dataclass(frozen=True, slots=True)
class Any(Generic[T]):
    parts: tuple[Node[T], ...]


Leaf: TypeAlias = "Lone[T] | Comparison[T] | Membership[T]"
Node: TypeAlias = "Lone[T] | Comparison[T] | Membership[T] | Not[T] | All[T] | Any[T]"


def leaves(node: Node[T]) -> Iterator[Leaf[T]]:
    """What is true or false by itself, in the order in which it was written."""
    match node:
        case Not():
            yield from leaves(node.part)
        case All() | Any():
            for part in node.parts:
                yield from leaves(part)
        case _:
            yield node


class Parser(ABC, Generic[T]):
    """Recursive descent over the grammar at the top of the file."""

    OPERATORS: str = f"{' '.join(COMPARISONS)}, in, not in"

    def __init__(self, text: str, mistake: type[Mistake]) -> None:
        """Raises `mistake` for a text that is too long."""
        if len(text) > MAX_CHARS:
            raise mistake(f"accepted are at most {MAX_CHARS} characters", MAX_CHARS + 1)
        self.reader = Reader(text, 0, mistake)
        self._text = text
        self._depth = 0

    @abstractmethod
    def operand(self) -> T:
        """Read one operand. Raises Mistake."""

    def collection(self) -> T | None:
        """Read what may stand behind `in` besides a list that is written out; None where it does not."""
        return None

    def whole(self) -> Node[T]:
        """The tree of the whole text. Raises Mistake with the place, in characters from 1."""
        node = self._any()
        if self.reader.current.kind != "end":
            raise self.reader.unexpected(f"the end, and, or, and behind an operand {self.OPERATORS}")
        return node

    def _any(self) -> Node[T]:
        parts = [self._all()]
        while self.reader.at_word("or"):
            self.reader.advance()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _all(self) -> Node[T]:
        parts = [self._one()]
        while self.reader.at_word("and"):
            self.reader.advance()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self) -> Node[T]:
        opening = self.reader.current
        negated, grouped = self.reader.at_word("not"), self.reader.at_sign("(")
        if not negated and not grouped:
            reader = self.reader
            left = self.operand()
            if reader.at_sign(*COMPARISONS):
                return Comparison(
                    left, reader.advance().text, self.operand(), self._text[opening.at : reader.end]
                )
            inside = not reader.at_word("not")
            if not inside:
                reader.advance()
            if reader.at_word("in"):
                reader.advance()
                members = self.collection()
                return Membership(
                    left,
                    self._members() if members is None else members,
                    inside,
                    self._text[opening.at : reader.end],
                )
            if not inside:
                raise reader.unexpected("`in`")
            return Lone(left, self._text[opening.at : reader.end])
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self.reader.mistake(f"accepted are at most {MAX_NESTING} levels", opening.at)
        self.reader.advance()
        if negated:
            node: Node[T] = Not(self._one())
        else:
            node = self._any()
            self.reader.expect(")", "and, or, ')'")
        self._depth -= 1
        return node

    def _members(self) -> tuple[T, ...]:
        reader = self.reader
        reader.expect("[", "a list such as ['pending', 'confirmed']")
        members: list[T] = []
        while not reader.at_sign("]"):
            members.append(self.operand())
            if not reader.at_sign("]"):
                reader.expect(",", "',' or ']'")
        reader.advance()
        return tuple(members)

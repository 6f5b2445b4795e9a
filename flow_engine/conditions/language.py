"""What a flow's condition may say, over the values of a conversation.

    operand  =  term, or terms joined by + and - where there are dates
    term     =  vars.<_id>  vars["any id"]  tenant.x  contact.x   with .key and [n] into lists and objects
             |  channel  language  now  today
             |  entries("<task id>")  refusals("<task id>")
             |  days(n)  hours(n)  minutes(n)
             |  numbers  'text'  "text"  true  false
    alone    =  has(vars.x)  |  true  |  false  |  a term that is true or false
    list     =  [operand, ...]  |  vars.x  tenant.x  contact.x

1. Read into a tree once; at most 2,000 characters, 40 levels of parentheses and `not`.
2. `text_of` writes a tree down again, so that it reads back to the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias, cast, get_args

from flow_engine.conditions import syntax
from flow_engine.conditions.lexing import Mistake, Path, Token, path_of

Root = Literal["vars", "tenant", "contact", "channel", "language", "now", "today"]
CountOf = Literal["entries", "refusals"]
Unit = Literal["days", "hours", "minutes"]

ROOTS: Final[tuple[Root, ...]] = get_args(Root)
COUNTS: Final[tuple[CountOf, ...]] = get_args(CountOf)
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
WITH_PARTS: Final = ("vars", "tenant", "contact")
ACCEPTED: Final = (
    "vars.x, tenant.x, contact.x, channel, language, now, today, entries('task'), refusals('task'), "
    "days(n), hours(n), minutes(n), has(vars.x), true, false, a number, 'text'"
)
_HINTS: Final = {
    **dict.fromkeys(("null", "None"), "; has(…) asks whether there is a value"),
    "{{": "; a condition has no braces around it",
}


class ConditionMistake(Mistake):
    """A condition that cannot be read; `at` counts its characters from 1."""


class UnknownName(ConditionMistake):
    """A condition that can be read but for a name that the language does not have."""


@dataclass(frozen=True, slots=True)
class Reference:
    """`path` is what follows the root: a variable and what lies in it, or nothing for `channel` and `now`."""

    root: Root
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a text, true or false."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Count:
    """How often a task was entered, or a change to it refused."""

    of: CountOf
    task_id: str


@dataclass(frozen=True, slots=True)
class Duration:
    amount: int | float
    unit: Unit

    @property
    def length(self) -> timedelta | None:
        """None where it is more than 999,999,999 days."""
        try:
            return timedelta(**{self.unit: self.amount})
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class Has:
    """Whether something has a value."""

    reference: Reference


@dataclass(frozen=True, slots=True)
class Sum:
    """`sign` is `+` or `-`."""

    left: Operand
    sign: str
    right: Operand


Operand: TypeAlias = "Reference | Constant | Count | Duration | Has | Sum"
Tree: TypeAlias = "syntax.Node[Operand]"
Part: TypeAlias = "syntax.Leaf[Operand]"


def parse(text: str) -> Tree:
    """Raises ConditionMistake for what cannot be read, UnknownName where that is a name alone."""
    tree, mistakes = read(text)
    if tree is None:
        raise mistakes[0]
    return tree


def read(text: str) -> tuple[Tree | None, list[ConditionMistake]]:
    """The condition, None where it cannot be read, and then why: every unknown name up to the first mistake
    of another kind, and that."""
    unknown: dict[str, ConditionMistake] = {}
    try:
        tree = _Parser(text, unknown).whole()
    except ConditionMistake as mistake:
        return None, [*unknown.values(), mistake]
    return None if unknown else tree, list(unknown.values())


class _Parser(syntax.Parser[Operand]):
    """Names that the language does not have are gathered in `unknown`, and passed over."""

    OPERATORS = syntax.Parser.OPERATORS + ", + -"

    def __init__(self, text: str, unknown: dict[str, ConditionMistake]) -> None:
        super().__init__(text, ConditionMistake)
        self._unknown = unknown

    def operand(self) -> Operand:
        if self.reader.current.text == "has":
            self.reader.advance()
            self.reader.expect("(", "has(vars.x)")
            if self.reader.current.kind != "path":
                raise self.reader.unexpected("a name such as vars.x")
            has = Has(self._reference(self.reader.advance()))
            self.reader.expect(")", "')'")
            return has
        left = self._term()
        while self.reader.at_sign("+", "-"):
            left = Sum(left, self.reader.advance().text, self._term())
        return left

    def collection(self) -> Operand | None:
        return self._reference(self.reader.advance()) if self.reader.current.kind == "path" else None

    def _term(self) -> Operand:
        reader, token = self.reader, self.reader.current
        match token.kind:
            case "number":
                return Constant(reader.number_of(reader.advance()))
            case "text":
                return Constant(reader.text_of(reader.advance()))
            case "word" if token.text in ("true", "false"):
                return Constant(reader.advance().text == "true")
            case "path":
                reader.advance()
                return self._call(token) if reader.at_sign("(") else self._reference(token)
            case _:
                raise reader.unexpected(ACCEPTED + _HINTS.get(token.text, ""))

    def _call(self, token: Token) -> Operand:
        reader = self.reader
        name = token.text
        if name not in (*COUNTS, *UNITS):
            hint = ": a minus needs a space before it" if "-" in name else ""
            raise UnknownName(f"{name!r} is no function{hint}; accepted are {ACCEPTED}", token.at + 1)
        reader.expect("(", "'('")
        argument = reader.current
        made: Operand
        if name in COUNTS:
            if argument.kind != "text":
                raise reader.unexpected("the _id of a task in quotes")
            made = Count("entries" if name == "entries" else "refusals", reader.text_of(reader.advance()))
        else:
            if argument.kind != "number":
                raise reader.unexpected("a number")
            made = Duration(reader.number_of(reader.advance()), cast("Unit", name))
        reader.expect(")", "')'")
        return made

    def _reference(self, token: Token) -> Reference:
        head, *rest = path_of(token)
        if head == "$":
            self._miss(head, f"'$' is for templates, names have none here; accepted are {ACCEPTED}", token)
            if not rest and self.reader.current.kind == "path":
                return self._reference(self.reader.advance())
        root = cast("Root", head)
        if root not in ROOTS:
            hint = ": a minus needs a space before it" if head.partition("-")[0] in ROOTS else ""
            self._miss(head, f"{head!r} is unknown{hint}; accepted are {ACCEPTED}", token)
        elif bool(rest) != (root in WITH_PARTS):
            accepted = f"{root}.x" if root in WITH_PARTS else root
            self._miss(token.text, f"{token.text!r} is unknown; accepted is {accepted}", token)
        return Reference(root, tuple(rest))

    def _miss(self, name: str, message: str, token: Token) -> None:
        self._unknown.setdefault(name, UnknownName(message, token.at + 1))


# --- what a tree holds ------------------------------------------------------------------------


def operands_of(part: Part) -> tuple[Operand, ...]:
    """The operands of a comparison, of a membership with its members, or the one that stands alone."""
    match part:
        case syntax.Comparison():
            return (part.left, part.right)
        case syntax.Membership():
            members = part.members if isinstance(part.members, tuple) else (part.members,)
            return (part.operand, *members)
        case syntax.Lone():
            return (part.operand,)


def atoms_of(operand: Operand) -> Iterator[Reference | Count]:
    """What the value of an operand depends on, in the order in which it was written."""
    match operand:
        case Reference() | Count():
            yield operand
        case Has():
            yield operand.reference
        case Sum():
            yield from atoms_of(operand.left)
            yield from atoms_of(operand.right)
        case Constant() | Duration():
            return


def atoms(tree: Tree) -> tuple[Reference | Count, ...]:
    """Everything outside of it that a condition depends on, each once."""
    operands = (operand for part in syntax.leaves(tree) for operand in operands_of(part))
    return tuple(dict.fromkeys(atom for operand in operands for atom in atoms_of(operand)))


# --- written down again -----------------------------------------------------------------------

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_NAME_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"'})


def text_of(node: Tree, within: int = 0) -> str:
    """A condition that reads back to the same tree. `within` is how closely what stands around it binds."""
    match node:
        case syntax.Any():
            text, binds = " or ".join(text_of(part, 2) for part in node.parts), 1
        case syntax.All():
            text, binds = " and ".join(text_of(part, 3) for part in node.parts), 2
        case syntax.Not():
            return f"not {text_of(node.part, 3)}"
        case syntax.Lone():
            return operand_text(node.operand)
        case syntax.Comparison():
            return f"{operand_text(node.left)} {node.sign} {operand_text(node.right)}"
        case syntax.Membership():
            members = node.members
            listed = (
                f"[{', '.join(map(operand_text, members))}]"
                if isinstance(members, tuple)
                else operand_text(members)
            )
            return f"{operand_text(node.operand)} {'in' if node.inside else 'not in'} {listed}"
    return f"({text})" if binds < within else text


def opposite_text(part: Part) -> str:
    """The condition that holds for comparable values exactly where this part does not."""
    match part:
        case syntax.Comparison():
            return text_of(syntax.Comparison(part.left, syntax.OPPOSITES[part.sign], part.right))
        case syntax.Membership():
            return text_of(syntax.Membership(part.operand, part.members, not part.inside))
        case syntax.Lone():
            return f"not {text_of(part)}"


def operand_text(operand: Operand) -> str:
    """An operand as it may stand in a condition. One line."""
    match operand:
        case Reference():
            return operand.root + "".join(map(_part_text, operand.path))
        case Constant():
            if isinstance(operand.value, str):
                return f"'{operand.value.translate(_ESCAPES)}'"
            return str(operand.value).lower() if isinstance(operand.value, bool) else repr(operand.value)
        case Count():
            return f"{operand.of}('{operand.task_id.translate(_ESCAPES)}')"
        case Duration():
            return f"{operand.unit}({operand.amount!r})"
        case Has():
            return f"has({operand_text(operand.reference)})"
        case Sum():
            return f"{operand_text(operand.left)} {operand.sign} {operand_text(operand.right)}"


def _part_text(part: str) -> str:
    plain = all(char.isalnum() or char in "_-" for char in part) and part
    return f".{part}" if plain else f'["{part.translate(_NAME_ESCAPES)}"]'

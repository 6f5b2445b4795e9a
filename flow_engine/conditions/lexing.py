"""The words of templates and conditions, read once for both.

word    and or not in null true false, and Python's None True False
path    ctx.call_id   ctx.items[0].name   ctx.items.0.name   session['first name']   $.status
        a hyphen behind a letter belongs to the name: a minus has a space before it
number  as JSON writes it, of at most 20 digits before the point and 20 behind it and an exponent of two; what
        takes more than 64 bits, as no variable does, is refused
text    'in single' or "in double quotes", with \\' \\" \\\\ \\/ \\n \\r \\t
sign    == != <= >= < > ( ) [ ] , | + - {{ }}
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from flow_engine.values import GREATEST_INT, LEAST_INT

Path: TypeAlias = tuple[str, ...]
"""`ctx.items[0].name` is `("ctx", "items", "0", "name")`."""

Kind = Literal["word", "path", "number", "text", "sign", "end", "unreadable"]

_PART = r"""\.[\w-]+|\[-?[0-9]+\]|\['(?:[^'\\]|\\.)*'\]|\["(?:[^"\\]|\\.)*"\]"""
_TOKEN = re.compile(
    rf"""(?P<word>(?:and|or|not|in|null|true|false|None|True|False)(?![\w.-]))
    |(?P<path>(?:\$|[^\W\d][\w-]*)(?:{_PART})*)
    |(?P<number>-?(?:0|[1-9][0-9]{{0,19}})(?:\.[0-9]{{1,20}})?(?:[eE][+-]?[0-9]{{1,2}})?(?![\w.]))
    |(?P<unreadable>-?[0-9][\w.]{{0,40}})
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<sign>==|!=|<=|>=|\{{\{{|\}}\}}|[<>()\[\],|+-])""",
    re.VERBOSE | re.DOTALL,
)
_PATH_PART = re.compile(
    r"""\.(?P<name>[\w-]+)|\[(?P<index>-?[0-9]+)\]|\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
    r"""|\$|[^\W\d][\w-]*""",
    re.DOTALL,
)
_SPACE = re.compile(r"\s*")
_LEAST_FRACTION = 1e-99
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"'": "'", '"': '"', "\\": "\\", "/": "/", "n": "\n", "r": "\r", "t": "\t"}
_NUMBERS: Final = (
    f"accepted are numbers of at most 64 bits ({LEAST_INT} to {GREATEST_INT}) as JSON writes them, "
    "with at most 20 digits behind the point"
)
_HINTS: Final = {
    "&": " (`and` is written out)",
    "|": " (`or` is written out)",
    "!": " (`not` is written out)",
    **{
        word: f" (`{word.lower()}` has small letters)" for word in ("AND", "OR", "NOT", "IN", "True", "False")
    },
    "=": " (`==` compares)",
    "is": " (`==` compares)",
    "'": " (the text has no closing quote)",
    '"': " (the text has no closing quote)",
}


class Mistake(ValueError):
    """A text of the config that cannot be read. `at` counts its characters from 1."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"character {at}: {message}")
        self.message = message
        self.at = at


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is what was written; `at` where it starts, in characters from 0."""

    kind: Kind
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


class Reader:
    """Reads tokens from `at` on. `current` comes next, `end` is where the token before it ended."""

    def __init__(self, source: str, at: int, mistake: type[Mistake]) -> None:
        self._source = source
        self._mistake = mistake
        self.end = at
        self.current = self._read(at)

    def advance(self) -> Token:
        """Take the current token."""
        token = self.current
        self.end = token.at + len(token.text)
        self.current = self._read(self.end)
        return token

    def close(self, sign: str, accepted: str) -> None:
        """Take `sign` as the last token. What follows is not looked at: it may be of another language. Raises
        Mistake for another token."""
        if not self.at_sign(sign):
            raise self.unexpected(accepted)
        self.end = self.current.at + len(sign)

    def at_sign(self, *signs: str) -> bool:
        return self.current.kind == "sign" and self.current.text in signs

    def at_word(self, *words: str) -> bool:
        return self.current.kind == "word" and self.current.text in words

    def expect(self, sign: str, accepted: str) -> None:
        if not self.at_sign(sign):
            raise self.unexpected(accepted)
        self.advance()

    def unexpected(self, accepted: str) -> Mistake:
        """The error to be raised where the current token is none of what is accepted."""
        token = self.current
        if token.kind == "unreadable" and token.text.lstrip("-")[0].isdigit():
            return self.mistake(f"{token} is no number here; {_NUMBERS}", token.at)
        hint = _HINTS.get(token.text, "")
        return self.mistake(f"{token} was not expected{hint}; accepted is {accepted}", token.at)

    def mistake(self, message: str, at: int) -> Mistake:
        """The error to be raised for the place `at`, in characters from 0."""
        return self._mistake(message, at + 1)

    def text_of(self, token: Token) -> str:
        """The characters that a text token stands for, its quotes and escapes taken away. Raises Mistake for
        an unknown escape."""

        def unescaped(match: re.Match[str]) -> str:
            if match[1] not in _ESCAPES:
                accepted = " ".join("\\" + character for character in "'\"\\/nrt")
                raise self.mistake(f"{match[0]!r} is no escape; accepted are {accepted}", token.at)
            return _ESCAPES[match[1]]

        return _ESCAPE.sub(unescaped, token.text[1:-1])

    def number_of(self, token: Token) -> int | float:
        """The value of a number token, a whole number as int. Raises Mistake for one beyond 64 bits."""
        whole = not any(sign in token.text for sign in ".eE")
        number = int(token.text) if whole else float(token.text)
        if not LEAST_INT <= number <= GREATEST_INT or 0 < abs(number) < _LEAST_FRACTION:
            raise self.mistake(f"{token} is no number here; {_NUMBERS}", token.at)
        return number

    def _read(self, at: int) -> Token:
        space = _SPACE.match(self._source, at)
        at = space.end() if space else at
        if at == len(self._source):
            return Token("end", "", at)
        match = _TOKEN.match(self._source, at)
        if match is None:
            return Token("unreadable", self._source[at], at)
        kind: Kind = match.lastgroup  # type: ignore[assignment]  # the groups are named by the kinds
        return Token(kind, match[0], at)


def path_of(token: Token) -> Path:
    """The parts of a path token. In a quoted one a backslash before any character stands for that one."""
    return tuple(
        match["name"]
        or match["index"]
        or (_ESCAPE.sub(r"\1", match["quoted"][1:-1]) if match["quoted"] else match[0])
        for match in _PATH_PART.finditer(token.text)
    )

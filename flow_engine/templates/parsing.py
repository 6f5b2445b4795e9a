"""Source to Jinja's syntax tree. The one file that adapts Jinja's lexer and parser.

The stock lexer rejects `$vars`, and rewriting the text first would also rewrite `{% raw %}` blocks and
string literals, so the lexer's own *name* token takes a leading `$`. JavaScript's operators, none of which
occurs in Jinja, are tokens too: they are found exactly where they are code, never in prose or in strings.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2 import lexer as jinja_lexer
from jinja2.parser import Parser

FORBIDDEN = "template_forbidden"
TOO_LARGE = "template_too_large"
TOO_DEEP = "template_too_deep"
SYNTAX = "template_syntax"
UNCLOSED = "template_unclosed"
JAVASCRIPT = "template_javascript"
PLACEHOLDER = "template_placeholder"
UNKNOWN_NAME = "template_unknown_name"
REFERENCE_AS_VALUE = "template_reference_as_value"

ERROR_CODES = frozenset({FORBIDDEN, TOO_LARGE, TOO_DEEP, UNCLOSED})
"""Hostile, beyond a limit, or cut off: refused at the save. Every other code is a warning there (F9)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a template. `line` counts from 1; `name` is one that is unknown."""

    line: int
    code: str
    message: str
    name: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class UnusableTemplate(Exception):
    """The source cannot become a syntax tree. Stays inside this package. An error with all `problems`."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


MAX_SOURCE_BYTES = 200 * 1024
MAX_TOKENS = 20_000
"""About 2,500 references. Bounds the time to parse and the memory of what is compiled."""
MAX_BRACKETS = 16
MAX_DEPTH = 50
"""Levels of the syntax tree: half the interpreter's own limit stays free for the callers."""

# Groups repeat greedily, only sets possessively: Python before 3.11.5 loses matches of possessive groups.
_PROSE = r"([^{]*+(?:\{(?![{%#])[^{]*+)*)"
_NAME = re.compile(r"\$?[^\W\d]\w*")
# Fifteen digits are exact as a float too; a longer literal is a mistake or an attack on int().
_INTEGER = re.compile(r"[0-9]{1,15}(?![0-9])")
_FLOAT = re.compile(r"(?<!\.)[0-9]{1,15}\.[0-9]{1,15}(?![0-9])")
_JAVASCRIPT = re.compile(r"===|!==|&&|\|\||\?\.|\?\?|=>|\$\{|[`?]|!(?!=)")
_SCRIPT = "javascript"
_PATH = "path"
_RUN = "run"
_TAG = "tag"
_LONE_PATH = r"\$[A-Za-z_][A-Za-z_0-9]{0,60}+(?:\.[A-Za-z_][A-Za-z_0-9]{0,60}+){0,7}"
_PROSE_AND_PATH = re.compile(_PROSE + rf"\{{\{{([ \t]*+)({_LONE_PATH})([ \t]*+)\}}\}}")
"""Prose and, behind it, nothing but a path in braces. Longer and other names go by the rules of tokens."""
_PROSE_AND_BLOCK = re.compile(
    _PROSE + rf"(\{{%[ \t]*+(?:(?:el)?if[ \t]++{_LONE_PATH}|else|endif|endfor)[ \t]*+%\}})"
)
"""Prose and, behind it, a condition that is nothing but a path, or the end of a block."""
_PASSED_OVER = jinja_lexer.ignored_tokens | {jinja_lexer.TOKEN_RAW_BEGIN, jinja_lexer.TOKEN_RAW_END}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}

_INSTEAD: Final = {
    "===": "==",
    "!==": "!=",
    "&&": "and",
    "||": "or, or the filter default(…)",
    "??": "the filter default(…)",
    "?.": "a plain dot, absent keys are safe",
    "?": "a if condition else b",
    "!": "not",
    "=>": "nothing: functions do not exist here",
    "`": "quotes and ~ to join texts",
    "${": "~ to join texts",
}


_ELSE_IF = re.compile(r"\{%[-+]?\s*(else ?if|elsif)\b")
_MARK = re.compile(r"\{\{|\{%|\{#|\}\}|%\}|#\}")
_END_MISSING = re.compile("[Uu]nexpected end of template|Missing end of")
"""How Jinja says that a tag, or a block between tags, has no end."""


def _is_unclosed(source: str) -> bool:
    """Whether a tag has no end, or another one begins before it; of a source that Jinja cannot read."""
    opened = False
    for mark in _MARK.finditer(source):
        opens = mark[0].startswith("{")
        if opens and opened:
            break
        opened = opens
    return opened


class _DollarLexer(jinja_lexer.Lexer):
    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        ours = {
            jinja_lexer.TOKEN_NAME: _NAME,
            jinja_lexer.TOKEN_INTEGER: _INTEGER,
            jinja_lexer.TOKEN_FLOAT: _FLOAT,
        }
        for state in (jinja_lexer.TOKEN_BLOCK_BEGIN, jinja_lexer.TOKEN_VARIABLE_BEGIN):
            end, *stock = self.rules[state]
            script = end._replace(pattern=_JAVASCRIPT, tokens=_SCRIPT, command=None)
            rules = [rule._replace(pattern=ours.get(str(rule.tokens), rule.pattern)) for rule in stock]
            # Nothing else begins as white space or a name does, so the two most frequent kinds go first.
            frequent = (jinja_lexer.TOKEN_WHITESPACE, jinja_lexer.TOKEN_NAME)
            rules.sort(key=lambda rule: rule.tokens not in frequent)
            self.rules[state] = [*rules[:2], end, script, *rules[2:]]

        # Up to the first tag, without a look at every alternative before every character.
        tag, data = self.rules["root"]
        prose = re.compile(tag.pattern.pattern.replace("(.*?)", _PROSE, 1), tag.pattern.flags)
        run = data._replace(pattern=re.compile(rf"(?:{_PROSE_AND_PATH.pattern})+"), tokens=_RUN)
        block = data._replace(pattern=_PROSE_AND_BLOCK, tokens=(jinja_lexer.TOKEN_DATA, _TAG))
        self.rules["root"] = [run, block, tag._replace(pattern=prose), data]

    def tokenize(
        self, source: str, name: str | None = None, filename: str | None = None, state: str | None = None
    ) -> jinja_lexer.TokenStream:
        """Lex all of it before the parser starts: limits hold early, JavaScript is told in full."""
        tokens: list[tuple[int, str, Any]] = []
        scripts: list[Problem] = []
        count = brackets = 0
        try:
            for line, kind, text in self.tokeniter(source, name, filename, state):
                count += 1
                value: Any = text
                if kind == _RUN:
                    several, value = _run(line, text)
                    count += several - 1
                elif kind == _TAG:
                    count += _block_tag(text)[0] - 1
                elif kind == _SCRIPT:
                    scripts.append(
                        Problem(line, JAVASCRIPT, f"{text!r} is JavaScript; write {_INSTEAD[text]}")
                    )
                elif kind == jinja_lexer.TOKEN_OPERATOR:
                    brackets += (text in "([{") - (text in ")]}")
                elif kind in _PASSED_OVER:
                    continue
                tokens.append((line, kind, value))
                if count > MAX_TOKENS:
                    message = f"at most {MAX_TOKENS} tokens in a template"
                    raise UnusableTemplate(Problem(line, TOO_LARGE, message))
                if brackets > MAX_BRACKETS:
                    message = f"at most {MAX_BRACKETS} brackets inside each other"
                    raise UnusableTemplate(Problem(line, TOO_DEEP, message))
        except TemplateSyntaxError:
            if not scripts:
                raise
        if scripts:
            unclosed = Problem(scripts[-1].line, UNCLOSED, "a tag is not closed")
            raise UnusableTemplate(*scripts, *([unclosed] if _is_unclosed(source) else ()))
        return jinja_lexer.TokenStream(self.wrap(tokens, name, filename), name, filename)

    def wrap(
        self, stream: Iterable[tuple[int, str, Any]], name: str | None = None, filename: str | None = None
    ) -> Iterator[jinja_lexer.Token]:
        for line, kind, text in stream:
            if kind == _RUN:  # each of its paths has its line; the end of the source is told by the last
                yield jinja_lexer.Token(text[-1][0], jinja_lexer.TOKEN_DATA, text)
            elif kind == _TAG:
                for part, word in _block_tag(text)[1]:
                    yield jinja_lexer.Token(line, part, word)
            elif kind == jinja_lexer.TOKEN_NAME:
                # `\w` knows more than names may have, such as `²`.
                if not text.removeprefix("$").isidentifier():
                    raise TemplateSyntaxError(f"{text!r} is not a name", line)
                yield jinja_lexer.Token(line, kind, text)
            elif kind == jinja_lexer.TOKEN_STRING:
                yield jinja_lexer.Token(line, kind, _unquoted(text, line))
            elif kind == jinja_lexer.TOKEN_INTEGER:
                value: Any = int(text)
                if value and text.startswith("0"):  # a mistake or a code, so text
                    message = f"{text!r} begins with 0; write {value}, or quotes around a text"
                    raise TemplateSyntaxError(message, line)
                yield jinja_lexer.Token(line, kind, value)
            elif kind == jinja_lexer.TOKEN_OPERATOR:
                yield jinja_lexer.Token(line, jinja_lexer.operators[text], text)
            elif kind == jinja_lexer.TOKEN_FLOAT:
                number: Any = float(text)
                yield jinja_lexer.Token(line, kind, number)
            else:  # the end of a line in data is one character already
                yield jinja_lexer.Token(line, kind, text)


class _DollarEnvironment(Environment):
    """Only carries the lexer and its settings: nothing is ever compiled or rendered by it."""

    def __init__(self) -> None:
        super().__init__(keep_trailing_newline=True)
        self._dollar_lexer = _DollarLexer(self)

    @property
    def lexer(self) -> jinja_lexer.Lexer:
        return self._dollar_lexer


_ENVIRONMENT = _DollarEnvironment()


class _Parser(Parser):
    """Jinja's, with a path alone in a tag as one name with dots in it, which no other name has."""

    def parse_tuple(self, *options: Any, **more: Any) -> nodes.Expr:
        token = self.stream.current
        if token.type != _PATH:
            return super().parse_tuple(*options, **more)
        next(self.stream)
        return nodes.Name(token.value, "load", lineno=token.lineno)


def check_size(source: str) -> None:
    """Raises `UnusableTemplate` for a source of more than `MAX_SOURCE_BYTES` of UTF-8."""
    if len(source) > MAX_SOURCE_BYTES or len(source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        raise UnusableTemplate(Problem(1, TOO_LARGE, f"at most {MAX_SOURCE_BYTES} bytes in a template"))


def parse(source: str) -> nodes.Template:
    """The syntax tree of any source; raises `UnusableTemplate`."""
    try:
        # `Parser.parse` would walk the tree once more, to note an environment that nothing asks for.
        return nodes.Template(_Parser(_ENVIRONMENT, source).subparse(), lineno=1)
    except TemplateSyntaxError as error:
        message = error.message or "not a template"
        mistaken = _ELSE_IF.search(source)
        message += f"; `{mistaken[1]}` is written elif" if mistaken else ""
        code = UNCLOSED if _END_MISSING.search(message) or _is_unclosed(source) else SYNTAX
        raise UnusableTemplate(Problem(error.lineno, code, message)) from error
    except RecursionError as error:
        # Chains such as `not not not …` recurse in the parser without brackets to count beforehand.
        raise UnusableTemplate(too_deep(1)) from error


def too_deep(line: int) -> Problem:
    """The error of a syntax tree with more than `MAX_DEPTH` levels, by the line where the next one begins."""
    return Problem(line, TOO_DEEP, f"at most {MAX_DEPTH} levels of blocks, operators and filters")


Run: TypeAlias = tuple[tuple[int, str, str], ...]
"""What a node of data holds where paths in braces stand in prose: each with its line, behind its prose."""


def _run(line: int, text: str) -> tuple[int, Run]:
    """Prose and paths, with how many tokens the other rules make of them, white space and dots among them."""
    found: list[tuple[int, str, str]] = []
    count = 0
    for prose, before, path, after in _PROSE_AND_PATH.findall(text):
        count += 3 + bool(prose) + bool(before) + bool(after) + 2 * path.count(".")
        line += prose.count("\n")
        found.append((line, prose, path))
    return count, tuple(found)


@lru_cache(maxsize=1024)
def _block_tag(tag: str) -> tuple[int, tuple[tuple[str, str], ...]]:
    """The tokens of such a tag as `_PROSE_AND_BLOCK` matches, as (kind, text), and how many the other rules
    make of it."""
    words = tag[2:-2].split()
    names = [(_PATH if word[0] == "$" else jinja_lexer.TOKEN_NAME, word) for word in words]
    spaces = len(words) - 1 + tag[2].isspace() + tag[-3].isspace()
    tokens = ((jinja_lexer.TOKEN_BLOCK_BEGIN, "{%"), *names, (jinja_lexer.TOKEN_BLOCK_END, "%}"))
    return len(tokens) + spaces + 2 * tag.count("."), tokens


def _unquoted(literal: str, line: int) -> str:
    """The value of a string literal: `\\n`, `\\t`, `\\r`, `\\uXXXX`, and any other character as itself.

    Raises `TemplateSyntaxError` for half a surrogate pair.
    """
    plain = _ESCAPE.sub(
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) == 5 else _ESCAPED.get(match[1], match[1]),
        literal[1:-1],
    )
    if _HALF_CHARACTER.search(plain):
        raise TemplateSyntaxError("half a character; write the character itself", line)
    return plain

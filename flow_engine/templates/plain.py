"""Plain templates to Jinja's syntax tree, in a quarter of the time that `parsing.parse` takes.

Most templates are prose with short tags: paths, filters, conditions, loops. For these, one pattern finds the
tokens of a tag and a small parser builds the tree, node by node the one that `parse` builds. It decides
nothing: the first thing that it does not know, rare or wrong, leaves the whole source to `parse`, which alone
says what is accepted and what is wrong. Left to it are comments, raw blocks, tags of several lines or many
tokens, calls, slices, tuples, keyword arguments, and arithmetic beyond `+` and `-`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice

from jinja2 import TemplateSyntaxError, nodes
from jinja2.lexer import operator_re

from flow_engine.templates.parsing import (
    FLOAT,
    INTEGER,
    MAX_BRACKETS,
    MAX_DEPTH,
    MAX_TOKENS,
    NAME,
    is_name,
    unquoted,
    whole_number,
)

_MOST_BLOCKS = 8
"""Inside each other. Each adds two levels to the tree at most, itself and its `elif`."""
_MOST_TOKENS = min(2 * MAX_BRACKETS, MAX_DEPTH - 2 * _MOST_BLOCKS - 2)
"""In a tag. Brackets come in pairs, and an expression has no more levels than tokens: what is plain is within
the limits on both, and nobody has to count."""

_BEGIN = re.compile(r"\{([{%#])[-+]?")
_STRING = r"""'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*'|"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*\""""


def _tokens_of_a_tag(end: str) -> re.Pattern[str]:
    """One token and the blanks before it, by rules in the order of Jinja's lexer.

    What is not plain matches too, without a group, so that there is no gap between two matches. JavaScript's
    operators need no rule: they fall apart into signs that no expression has, alone or side by side.
    """
    return re.compile(
        rf"[^\S\n]*(?:(?P<name>{NAME.pattern})|(?P<end>{end})"
        rf"|(?P<float>{FLOAT.pattern})|(?P<integer>{INTEGER.pattern})|(?P<string>{_STRING})"
        rf"|(?P<operator>{operator_re.pattern})|.)",
        re.DOTALL,
    )


_TOKENS = {"{": _tokens_of_a_tag(r"-\}\}\s*|\}\}"), "%": _tokens_of_a_tag(r"\+%\}|-%\}\s*|%\}")}

_OR, _AND, _NOT, _COMPARE, _SUM, _CONCAT = range(1, 7)
_COMPARISONS = {
    "==": "eq",
    "!=": "ne",
    "<": "lt",
    "<=": "lteq",
    ">": "gt",
    ">=": "gteq",
    "in": "in",
    "not": "notin",
}
_LEVELS: Mapping[str, int] = {
    "or": _OR,
    "and": _AND,
    **dict.fromkeys(_COMPARISONS, _COMPARE),
    "+": _SUM,
    "-": _SUM,
    "~": _CONCAT,
}
"""How tightly what stands between two operands binds."""
_BINARY: Mapping[str, type[nodes.BinExpr]] = {
    "or": nodes.Or,
    "and": nodes.And,
    "+": nodes.Add,
    "-": nodes.Sub,
}
_UNARY: Mapping[str, type[nodes.UnaryExpr]] = {"+": nodes.Pos, "-": nodes.Neg}
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
_AFTER_A_TEST = ("and", "or", "else")
"""The words that can follow the name of a test; Jinja takes any other for the test's argument."""


class _NotPlain(Exception):
    """Here is something for `parse` to look at."""


def read_plain(source: str) -> nodes.Template | None:
    """The tree that `parse` makes of the source, or None when it is to be asked."""
    if len(source) > MAX_TOKENS:  # there are no more tokens than characters
        return None
    try:
        return _Reader(source.replace("\r\n", "\n").replace("\r", "\n")).template()
    except (_NotPlain, TemplateSyntaxError):
        return None


class _Tag:
    """What one tag holds; `kind` and `text` are those of the next token, `end` is where it ends.

    Words and signs are known by their text alone, since a string's text has its quotes.
    """

    __slots__ = ("_matches", "end", "kind", "line", "text")

    def __init__(self, begin: re.Match[str], line: int) -> None:
        if begin[1] not in _TOKENS:
            raise _NotPlain
        self.line = line
        self._matches = islice(_TOKENS[begin[1]].finditer(begin.string, begin.end()), _MOST_TOKENS)
        self._advance()

    def _advance(self) -> None:
        match = next(self._matches, None)
        if match is None or match.lastgroup is None:
            raise _NotPlain
        self.kind, self.end = match.lastgroup, match.end()
        self.text = match[self.kind]

    def takes(self, text: str) -> bool:
        if self.text != text:
            return False
        self._advance()
        return True

    def expect(self, text: str) -> None:
        if not self.takes(text):
            raise _NotPlain

    def word(self) -> str:
        word = self.text
        if self.kind != "name" or not (word.isascii() or is_name(word)):
            raise _NotPlain
        self._advance()
        return word

    def expression(self) -> nodes.Expr:
        node = self.condition()
        while self.takes("if"):
            test = self.condition()
            otherwise = self.expression() if self.takes("else") else None
            node = nodes.CondExpr(test, node, otherwise, lineno=self.line)
        return node

    def condition(self) -> nodes.Expr:
        """An expression that ends before an `if`, as where a tag has one of its own."""
        return self._operation(_OR)

    def _operation(self, level: int) -> nodes.Expr:
        """Operands joined by what binds as tightly as `level` or more tightly."""
        if level <= _NOT and self.takes("not"):
            node: nodes.Expr = nodes.Not(self._operation(_NOT), lineno=self.line)
        else:
            node = self._operand()
        while (found := _LEVELS.get(self.text, 0)) >= level:
            if found == _COMPARE:
                node = nodes.Compare(node, self._comparisons(), lineno=self.line)
            elif found == _CONCAT:
                node = nodes.Concat([node, *self._joined()], lineno=self.line)
            else:
                operation = _BINARY[self.text]
                self._advance()
                node = operation(node, self._operation(found + 1), lineno=self.line)
        return node

    def _comparisons(self) -> list[nodes.Operand]:
        found: list[nodes.Operand] = []
        while (name := _COMPARISONS.get(self.text)) is not None:
            self._advance()
            if name == "notin":
                self.expect("in")
            found.append(nodes.Operand(name, self._operation(_COMPARE + 1)))
        return found

    def _joined(self) -> list[nodes.Expr]:
        found: list[nodes.Expr] = []
        while self.takes("~"):
            found.append(self._operand())
        return found

    def _operand(self) -> nodes.Expr:
        sign = _UNARY.get(self.text)
        if sign is None:
            node = self._path()
        else:
            self._advance()
            node = sign(self._path(), lineno=self.line)
        while True:
            if self.takes("|"):
                name = self.word()
                arguments = self._items(")") if self.takes("(") else []
                node = nodes.Filter(node, name, arguments, [], None, None, lineno=self.line)
            elif self.takes("is"):
                node = self._test(node)
            else:
                return node

    def _test(self, node: nodes.Expr) -> nodes.Expr:
        negated = self.takes("not")
        test = nodes.Test(node, self.word(), [], [], None, None, lineno=self.line)
        if self.kind == "name" and self.text not in _AFTER_A_TEST:
            raise _NotPlain
        return nodes.Not(test, lineno=self.line) if negated else test

    def _path(self) -> nodes.Expr:
        node = self._primary()
        while True:
            if self.takes("."):
                node = nodes.Getattr(node, self.word(), "load", lineno=self.line)
            elif self.takes("["):
                node = nodes.Getitem(node, self.expression(), "load", lineno=self.line)
                self.expect("]")
            else:
                return node

    def _primary(self) -> nodes.Expr:
        kind, text = self.kind, self.text
        if kind == "name":
            self.word()
            if text in _CONSTANTS:
                return nodes.Const(_CONSTANTS[text], lineno=self.line)
            return nodes.Name(text, "load", lineno=self.line)
        if self.takes("("):
            node = self.expression()
            self.expect(")")
            return node
        if self.takes("["):
            return nodes.List(self._items("]"), lineno=self.line)
        return self._literal()

    def _literal(self) -> nodes.Const:
        value: str | int | float
        if self.kind == "string":
            value = unquoted(self.text, self.line)
        elif self.kind == "integer":
            value = whole_number(self.text, self.line)
        elif self.kind == "float":
            value = float(self.text)
        else:
            raise _NotPlain
        self._advance()
        return nodes.Const(value, lineno=self.line)

    def _items(self, closing: str) -> list[nodes.Expr]:
        """Expressions between commas, one of which may be the last, and the bracket behind them."""
        items: list[nodes.Expr] = []
        while not self.takes(closing):
            items.append(self.expression())
            if not self.takes(","):
                self.expect(closing)
                break
        return items


class _Reader:
    """Prose and blocks; `_tag` is the tag that was entered last."""

    _tag: _Tag

    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        self._line = 1

    def template(self) -> nodes.Template:
        body, word = self._body(0)
        if word:
            raise _NotPlain
        return nodes.Template(body, lineno=1)

    def _body(self, blocks: int) -> tuple[list[nodes.Node], str]:
        """Up to a tag that begins with another word than `if` and `for`, or up to the end, which has none."""
        if blocks > _MOST_BLOCKS:
            raise _NotPlain
        body: list[nodes.Node] = []
        output: list[nodes.Node] = []
        while (begin := _BEGIN.search(self._source, self._position)) is not None:
            self._enter(begin, output)
            if begin[1] == "{":
                output.append(self._tag.expression())
                self._leave()
                continue
            _flush(output, body)
            word = self._tag.word()
            if word == "if":
                body.append(self._if(blocks + 1))
            elif word == "for":
                body.append(self._for(blocks + 1))
            else:
                return body, word
        self._write(self._source[self._position :], output)
        _flush(output, body)
        return body, ""

    def _enter(self, begin: re.Match[str], output: list[nodes.Node]) -> None:
        prose = self._source[self._position : begin.start()]
        self._write(prose.rstrip() if begin[0].endswith("-") else prose, output)
        self._line += prose.count("\n")
        self._position = begin.end()
        self._tag = _Tag(begin, self._line)

    def _leave(self) -> None:
        if self._tag.kind != "end":
            raise _NotPlain
        self._line += self._tag.text.count("\n")
        self._position = self._tag.end

    def _write(self, prose: str, output: list[nodes.Node]) -> None:
        if prose:
            output.append(nodes.TemplateData(prose, lineno=self._line))

    def _if(self, blocks: int) -> nodes.If:
        node, word = self._branch(blocks)
        while word == "elif":
            branch, word = self._branch(blocks)
            node.elif_.append(branch)
        node.else_ = self._else_and_end(word, "endif", blocks)
        return node

    def _branch(self, blocks: int) -> tuple[nodes.If, str]:
        line, test = self._tag.line, self._tag.condition()
        self._leave()
        body, word = self._body(blocks)
        return nodes.If(test, body, [], [], lineno=line), word

    def _for(self, blocks: int) -> nodes.For:
        tag = self._tag
        variable = nodes.Name(tag.word(), "store", lineno=tag.line)
        if not variable.can_assign():
            raise _NotPlain
        tag.expect("in")
        items = tag.condition()
        test = tag.expression() if tag.takes("if") else None
        self._leave()
        body, word = self._body(blocks)
        otherwise = self._else_and_end(word, "endfor", blocks)
        return nodes.For(variable, items, body, otherwise, test, False, lineno=tag.line)

    def _else_and_end(self, word: str, end: str, blocks: int) -> list[nodes.Node]:
        otherwise: list[nodes.Node] = []
        if word == "else":
            self._leave()
            otherwise, word = self._body(blocks)
        if word != end:
            raise _NotPlain
        self._leave()
        return otherwise


def _flush(output: list[nodes.Node], body: list[nodes.Node]) -> None:
    """What was written between two blocks becomes one node."""
    if output:
        body.append(nodes.Output(output.copy(), lineno=output[0].lineno))
        output.clear()

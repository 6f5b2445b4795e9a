"""The law of plain templates: what is read quickly is what Jinja reads, and the rest is left to it."""

from __future__ import annotations

from typing import cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import nodes

from benchmarks import documents
from flow_engine.documents import FlowVersion, parse_version
from flow_engine.templates.parsing import MAX_TOKENS, parse
from flow_engine.templates.plain import read_plain
from flow_engine.templates.problems import UnusableTemplate
from flows.samples import load_samples
from tests.flow_engine.templates.test_template_bounds import ENDED, REFUSED

Told = list[tuple[int, str, int | None, object]]


def told(tree: nodes.Node) -> Told:
    """Everything that a tree says: kinds, lines, values with their types; flat, however deep the tree is."""
    lines: Told = []
    waiting: list[tuple[object, int]] = [(tree, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, nodes.Node):
            lines.append((depth, type(item).__name__, item.lineno, item.fields))
            waiting += [(getattr(item, field), depth + 1) for field in item.fields]
        elif isinstance(item, list):
            elements = cast("list[object]", item)
            lines.append((depth, "list", None, len(elements)))
            waiting += [(element, depth + 1) for element in elements]
        else:
            lines.append((depth, type(item).__name__, None, item))
    return lines


def read_by_jinja(source: str) -> Told | None:
    try:
        return told(parse(source))
    except UnusableTemplate:
        return None


def assert_same_tree(source: str) -> None:
    plain = read_plain(source)
    assert plain is None or told(plain) == read_by_jinja(source)


def _mostly(usual: list[str], odd: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(usual * (6 * len(odd) // len(usual) + 1) + odd)


_BLANKS = _mostly([" "], ["", "\t", "\n", "\r\n", "\x85"])
_OPERANDS = _mostly(
    [
        "$vars.v1",
        "$tenant.a.b",
        "x",
        "loop.index",
        "x[0]",
        "x['a b']",
        "[1, x]",
        "true",
        "none",
        "0",
        "1.5",
        "'a'",
    ],
    [
        *(
            "x[1:2]",
            "x[1, 2]",
            "x.0",
            "x.è",
            "x²",
            "²",
            "è",
            "٣",
            "not",
            "if",
            "else",
            "in",
            "is",
            "and",
            "None",
        ),
        *(
            "00",
            "007",
            "1.50.1",
            "1234567890123456",
            "1_0",
            "0x1",
            "",
            "[]",
            "[x,]",
            "[,]",
            "()",
            "(x)",
            "(x,)",
        ),
        *(
            '"b"',
            r"'it\'s'",
            r"'\u00e8\n'",
            r"'\ud800'",
            "'}}'",
            "'%}'",
            "'a' 'b'",
            "'a\nb'",
            "'a\\\nb'",
            "'",
        ),
        *("{}", "{'a': 1}", "f()", "f(x)", "x.f()", "x}", "x)"),
    ],
)
_FILTERS = _mostly(
    ["upper", "default('a')"],
    ["default('a', true,)", "join()", "join(d='-')", "f(*x)", "f(,)", "a.b", "f('a').b", "1", ""],
)
_TESTS = _mostly(
    ["defined", "not none"],
    [
        "in",
        "divisibleby 2",
        "divisibleby(2)",
        "eq x",
        "eq 'a'",
        "in [1]",
        "a.b",
        "not not none",
        "none | upper",
    ],
)
_BETWEEN = _mostly(
    ["==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or", "+", "-", "~", "and not", "or not"],
    [
        *("*", "/", "//", "%", "**", "=", "is", "not", "if", ",", ".", "|", ":"),
        *("===", "!==", "||", "&&", "?", "=>"),
    ],
)
_EXPRESSIONS = st.recursive(
    _OPERANDS,
    lambda inner: st.one_of(
        st.builds("{}{}{}{}{}".format, inner, _BLANKS, _BETWEEN, _BLANKS, inner),
        st.builds("{}{}|{}{}".format, inner, _BLANKS, _BLANKS, _FILTERS),
        st.builds("{} is {}".format, inner, _TESTS),
        st.builds("{} if {} else {}".format, inner, inner, inner),
        st.builds("{} if {}".format, inner, inner),
        st.builds("not {}".format, inner),
        st.builds("{}{}".format, st.sampled_from("-+"), inner),
        st.builds("({})".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("{}.{}".format, inner, st.sampled_from(["a", "_id", "length", "1", "is"])),
    ),
    max_leaves=7,
)
_SIGNS = _mostly([""], ["-", "+"])
_PROSE = _mostly(
    ["", "a ", " \n "], ["b\r\n", "\r", "{", "}", "{ {", "%}", "${vars.x}", "$5", "{# c #}", "{% raw %}"]
)


def _tag(begin: str, inner: st.SearchStrategy[str], end: str) -> st.SearchStrategy[str]:
    return st.builds(
        "{}{}{}{}{}{}{}".format, st.just(begin), _SIGNS, _BLANKS, inner, _BLANKS, _SIGNS, st.just(end)
    )


def _block_tag(usual: list[str], odd: list[str]) -> st.SearchStrategy[str]:
    return _tag("{%", _mostly(usual, odd), "%}")


_LOOPS = st.builds(
    "for {} in {}{}".format,
    _mostly(["x"], ["loop", "true", "$v", "x, y", "(x)", "x.y"]),
    _EXPRESSIONS,
    st.one_of(st.sampled_from(["", "", " recursive", ":"]), st.builds(" if {}".format, _EXPRESSIONS)),
)
_TEMPLATES = st.recursive(
    st.one_of(_PROSE, _tag("{{", _EXPRESSIONS, "}}")),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds(
            "{}{}{}{}{}".format,
            _tag("{%", st.builds("if {}".format, _EXPRESSIONS), "%}"),
            inner,
            st.one_of(
                st.just(""),
                _block_tag(["else"], ["else:", "else x", "els"]),
                _tag("{%", st.builds("elif {}".format, _EXPRESSIONS), "%}"),
            ),
            inner,
            _block_tag(["endif"], ["endif x", "endfor", ""]),
        ),
        st.builds(
            "{}{}{}{}{}".format,
            _tag("{%", _LOOPS, "%}"),
            inner,
            st.one_of(st.just(""), _block_tag(["else"], ["elif x"])),
            inner,
            _block_tag(["endfor"], ["endif"]),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(_TEMPLATES)
def test_a_plain_template_has_the_tree_that_jinja_makes_of_it(source: str) -> None:  # F22
    assert_same_tree(source)


@settings(max_examples=400, deadline=None)
@given(_EXPRESSIONS)
def test_a_plain_expression_has_the_tree_that_jinja_makes_of_it(expression: str) -> None:  # F22
    assert_same_tree(f"{{{{ {expression} }}}}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ a is defined if b }}",
        "{{ a is none in b }}",
        "{{ a == not b }}",
        "{{ a == not }}",
        "{{ not a in b }}",
        "{{ a not b }}",
        "{{ x² }}",
        "{{ a -}} \n {{ b }}{% if c -%}\n\n{{ d }}{% else -%}\n{{ e }}{% endif -%}\n{{ f }}",
        "{%- if a %}{%+ else x %}{% endif %}",
        "{% if a %}{% else %}{% else %}{% endif %}",
        "{% if a %}{% else %}{% elif b %}{% endif %}",
        "{% if a if b else c %}{% endif %}",
        "{% for a in b if c if d else e %}{% endfor %}",
        "{% for a in b %}{% elif c %}{% endfor %}",
        "{% for a in b if c recursive %}{% endfor %}",
        "{% for true in b %}{% endfor %}",
        "{% for a in b %}{% endif %}",
        "{% if a %}{% endfor %}",
        "{% if a %}",
        "{% endif %}",
        "{{ a }} }} %} {{ '{{' }}",
        "{{{ a }}}",
        "{{ (a }} ) }}",
        "{{ a %}",
        "{% if a }}{% endif %}",
    ],
)
def test_a_tricky_template_has_the_tree_that_jinja_makes_of_it(source: str) -> None:  # F22
    assert_same_tree(source)


@pytest.mark.parametrize("source", [*REFUSED.values(), *ENDED.values()], ids=[*REFUSED, *ENDED])
def test_a_hostile_template_has_the_tree_that_jinja_makes_of_it(source: str) -> None:  # F22
    assert_same_tree(source)


@pytest.mark.parametrize("many", range(1, 60))
def test_what_is_too_deep_for_jinja_is_never_plain(many: int) -> None:  # F22
    for source in (
        "{{ " + "(" * many + "1" + ")" * many + " }}",
        "{{ " + "[" * many + "]" * many + " }}",
        "{{ " + "x[" * many + "1" + "]" * many + " }}",
        "{{ " + "not " * many + "x }}",
        "{{ x" + ".a" * many + " }}",
        "{{ x" + " | upper" * many + " }}",
        "{{ x" + " is not none" * many + " }}",
        "{{ x" + " + x" * many + " }}",
        "{{ x" + " == x" * many + " }}",
        "{{ x" + " ~ x" * many + " }}",
        "{{ x" + " if x else x" * many + " }}",
        "{% if x %}" * many + "{{ not not not x }}" + "{% endif %}" * many,
        "{% if x %}{% elif x %}" * many + "{{ x" + ".a" * 14 + " }}" + "{% endif %}" * many,
        "{% for x in x if not not x %}" * many + "{% else %}{{ not x }}{% endfor %}" * many,
    ):
        assert_same_tree(source)


def _templates(version: FlowVersion) -> list[str]:
    return [
        version.global_prompt,
        *(text for task in version.tasks for text in (task.prompt, task.description)),
    ]


def test_the_templates_of_real_flows_are_plain() -> None:  # F9
    """Or the quick way would be there for nothing."""
    samples = [parse_version(orjson.loads(sample.document)) for sample in load_samples()]
    generated = parse_version(documents.complete(documents.build_version(12)))
    for version in (*samples, generated):
        for source in _templates(version):
            plain = read_plain(source)
            assert plain is not None, source
            assert told(plain) == read_by_jinja(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ $vars.a }}, {{ $values['a b'] | default('c', true) | upper }}",
        "{% if $values.a == 'b' and not ($channel in ['c', 'd',] or x is not none) %}e{% endif %}",
        "{%- for s in $tenant.sites if s.open -%}\n{{ loop.index }}{% else %}none{% endfor +%}",
        "{% if a %}b{% elif c < 2.5 <= d %}e{% else %}{{ -1 + x[0] ~ 'f' | upper if g else h }}{% endif %}",
        "{% for a in b if c if d else e -%}\n{{ a -}}\n{% endfor %}",
        "a\r\n{{ b }}\r{{ c }}",
    ],
)
def test_the_ordinary_constructs_are_plain(source: str) -> None:  # F9
    plain = read_plain(source)
    assert plain is not None
    assert told(plain) == read_by_jinja(source)


def test_a_source_with_room_for_too_many_tokens_is_left_to_jinja() -> None:  # F22
    assert read_plain("{{ x }}" + "a" * (MAX_TOKENS - 7)) is not None
    assert read_plain("{{ x }}" + "a" * (MAX_TOKENS - 6)) is None

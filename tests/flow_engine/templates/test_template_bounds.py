"""Templates that attack: each is refused, or ends within the bounds."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import SandboxedEnvironment

from flow_engine.errors import CorrectTheInput
from flow_engine.templates import (
    Allowance,
    TemplateScope,
    compile_template,
    lint_template,
    render_source,
)
from flow_engine.templates.frame import MAX_CPU_SECONDS, MAX_OUTPUT_BYTES, MAX_STEPS
from flow_engine.templates.parsing import MAX_SOURCE_BYTES
from tests.timing import takes_less_than


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


_CIRCLE: dict[str, object] = {}
_CIRCLE["self"] = _CIRCLE

HUGE = TemplateScope(
    variables={"v1": "x"},
    values={"v1": "secret-value", "huge": "a" * 1_000_000},
    tenant={
        "list": list(range(100_000)),
        "text": "è" * 200_000,
        "spaces": "a " * 100_000,
        "deep": _nested(5_000),
        "circle": _CIRCLE,
        "number": 10**5000,
        "object": object(),
        "nan": float("nan"),
        "infinite": float("inf"),
    },
    contact={},
    channel="voice",
    language="it",
    flow={},
    task={},
)

_OVER = "{% for x in $tenant.list %}"
_END = "{% endfor %}"

REFUSED = {
    "multiplied text": "{{ 'a' * 10 ** 9 }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a percent format": "{{ '%1000000000d' % 1 }}",
    "a format width": "{{ '{:>1000000000}'.format(1) }}",
    "a format walk": "{{ '{0.__class__}'.format($tenant) }}",
    "a class walk": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a dunder on a root": "{{ $vars.__class__ }}",
    "a dunder method": "{{ $tenant.__init__.__globals__ }}",
    "an underscore": "{{ $tenant._private }}",
    "the attr filter": "{{ $tenant | attr('__class__') }}",
    "the map filter": "{{ $tenant.list | map(attribute='__class__') | list }}",
    "the format filter": "{{ '%99999999d' | format(1) }}",
    "the center filter": "{{ 'a' | center(10000000) }}",
    "the indent filter": "{{ $tenant.text | indent(100000) }}",
    "the batch filter": "{{ [1] | batch(100000000, 'x') | list }}",
    "the wordwrap filter": "{{ $tenant.text | wordwrap(1) }}",
    "the pprint filter": "{{ $tenant | pprint }}",
    "a call of range": "{% for x in range(10 ** 9) %}{% endfor %}",
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner('x')() }}",
    "a namespace": "{% set n = namespace(a='x') %}",
    "a growing set": "{% set x = 'aaaa' %}{% set x = x ~ x %}{{ x }}",
    "a set block": "{% set x %}a{% endset %}",
    "a recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a call block": "{% call m() %}{% endcall %}",
    "a caller": "{{ caller() }}",
    "an include": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}{{ os }}",
    "a from import": "{% from 'os' import path %}",
    "an extends": "{% extends 'base' %}",
    "a block": "{% block a %}{{ self.a() }}{% endblock %}",
    "a with": "{% with a = 1 %}{{ a }}{% endwith %}",
    "a filter block": "{% filter upper %}a{% endfilter %}",
    "an autoescape block": "{% autoescape true %}{% endautoescape %}",
    "a recursive loop": "{% for x in $tenant.list recursive %}{{ loop(x) }}{% endfor %}",
    "a cycling loop": _OVER + "{{ loop.cycle('a', 'b') }}" + _END,
    "an unpacking loop": "{% for a, b in $tenant.list %}{% endfor %}",
    "a loop over loop": "{% for loop in $tenant.list %}{% endfor %}",
    "a loop into a root": "{% for $vars in $tenant.list %}{% endfor %}",
    "unpacked arguments": "{{ 'a' | replace(*$tenant.list) }}",
    "unpacked keywords": "{{ 'a' | replace(**$tenant) }}",
    "a surplus argument": "{{ $tenant.list | join(',', '__class__') }}",
    "an attribute argument": "{{ $tenant.list | join(attribute='__class__') }}",
    "a rounding method": "{{ 1.5 | round(100000, 'ceil') }}",
    "a test with an argument": "{{ 4 is divisibleby 2 }}",
    "an object literal": "{{ {'a': 1} }}",
    "deep brackets": "{{ " + "(" * 200 + "1" + ")" * 200 + " }}",
    "deep lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "deep negation": "{{ " + "not " * 5000 + "1 }}",
    "deep signs": "{{ " + "-" * 5000 + "1 }}",
    "deep subscripts": "{{ $tenant" + ".a" * 5000 + " }}",
    "deep sums": "{{ 1" + " + 1" * 5000 + " }}",
    "deep filters": "{{ 'a'" + " | upper" * 5000 + " }}",
    "deep conditions": "{{ 1" + " if 1 else 1" * 3000 + " }}",
    "deep blocks": "{% if 1 %}" * 400 + "{% endif %}" * 400,
    "many tokens": "{{1}}" * 30_000,
    "a huge source": "a" * (MAX_SOURCE_BYTES + 1),
    "a huge integer": "{{ " + "9" * 100_000 + " }}",
    "a huge hexadecimal": "{{ 0x" + "f" * 100_000 + " }}",
    "digits of another script": "{{ ٣.٣ }}",
    "half a character": "{{ '\\ud800' }}",
    "a wide underscore": "{{ ''.＿＿class＿＿ }}",
    "an unclosed comment": "{# " + "a" * 100_000,
    "an unclosed raw": "{% raw %}" + "{% " * 10_000,
    "many spaces before raw": "{%" + " " * 200_000,
}

ENDED = {
    "a long loop": _OVER + "{{ x }}" + _END,
    "an empty nested loop": _OVER * 3 + _END * 3,
    "a loop that skips everything": "{% for x in $tenant.list if x == -1 %}" + _END,
    "nested loops that skip everything": _OVER + "{% for y in $tenant.list if y == -1 %}" + _END * 2,
    "a loop over a huge text": "{% for c in $values.huge %}{{ c }}" + _END,
    "the whole of a huge list": "{{ $tenant.list }}",
    "the whole of everything": "{{ $tenant }}",
    "a deep value": "{{ $tenant.deep }}",
    "a circular value": "{{ $tenant.circle }}",
    "equal deep values": "{{ $tenant.deep == $tenant.deep }}",
    "equal circular values": "{{ $tenant.circle == $tenant.circle }}",
    "equal huge lists, often": _OVER + "{{ $tenant.list == $tenant.list }}" + _END,
    "a search in a huge list, often": _OVER + "{{ -1 in $tenant.list }}" + _END,
    "a search in a huge text, often": _OVER + "{{ 'b' in $tenant.text }}" + _END,
    "a huge text": "{{ $values.huge }}",
    "a huge text, often": _OVER + "{{ $tenant.text }}" + _END,
    "joined huge texts": "{{ $tenant.text ~ $tenant.text ~ $tenant.text }}",
    "joined huge texts, often": _OVER + "{{ ($tenant.text ~ x) | length }}" + _END,
    "added huge texts": "{{ ($tenant.text + $tenant.text) | length }}",
    "a huge join": "{{ $tenant.list | join($tenant.text) }}",
    "a join, often": _OVER + "{{ $tenant.list | join }}" + _END,
    "a replacement that explodes": "{{ $tenant.text | replace('è', $tenant.text) }}",
    "a replacement between all": "{{ $tenant.text | replace('', 'aaaaaaaaaaaaaaaa') }}",
    "a title, often": _OVER + "{{ $tenant.spaces | title | length }}" + _END,
    "a case change, often": _OVER + "{{ $tenant.text | upper | lower | length }}" + _END,
    "a slice, often": _OVER + "{{ $tenant.list[::-1] | length }}" + _END,
    "a slice of nothing": "{{ $tenant.list[::0] }}{{ 'a'['b':] }}{{ 'abc'[-999999999:999999999] }}",
    "an unhashable key": "{{ $tenant[[1]] }}{{ $values[[1]] }}{{ $vars[[1]] }}{{ [1] in $tenant }}",
    "a number beyond all": "{{ $tenant.number }}{{ $tenant.number + 1.5 }}{{ $tenant.number < 1.5 }}",
    "a rounded number beyond all": "{{ $tenant.number | round }}{{ $tenant.number | int }}",
    "numbers that are none": "{{ $tenant.nan | int }}{{ $tenant.infinite | int }}{{ $tenant.nan }}",
    "an infinite text": "{{ 'inf' | float | round }}{{ '1e999' | int }}{{ 'nan' | int }}",
    "long digits as text": "{{ $values.huge | int }}{{ $values.huge | float }}",
    "a rounding to a million places": "{{ 1 | round(-999999999) }}{{ 1.5 | round(999999999) }}",
    "an object that is not JSON": "{{ $tenant.object }}{{ $tenant.object.x }}{{ $tenant.object | length }}",
    "a method of a text": "{{ ''.format }}{{ ''.join }}{{ [].append }}{{ $tenant.items }}{{ $tenant.keys }}",
    "a subscript walk": "{{ ''['__class__'] }}{{ $tenant['__class__']['__init__'] }}{{ $vars['__class__'] }}",
    "the engine's own names": "{{ self }}{{ caller }}{{ loop }}{{ environment }}{{ context }}{{ range }}",
    "the loop itself": _OVER + "{{ loop }}{{ loop.previtem }}{{ loop.depth }}" + _END,
    "private names": "{{ __class__ }}{{ _ }}{{ __builtins__ }}{{ t_1 }}{{ l_0_x }}",
    "a wide name": "{{ ｓｅｌｆ }}{{ $tenant.ｌｉｓｔ }}",
    "control characters": "{{ 'a\\x00' }}\x00\x1b{{ $channel }}\u2028\u202e",
    "many references": "{{$tenant.a}}" * 2_000,
    "many branches": "{% if false %}" + "{% elif false %}" * 2_000 + "{% endif %}",
}


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_a_hostile_template_is_refused_and_leniently_it_is_only_text(source: str) -> None:  # F22
    with pytest.raises(CorrectTheInput) as caught:
        compile_template(source)
    assert caught.value.findings
    rendered = compile_template(source, lenient=True).render(HUGE).text
    assert rendered.startswith("[template error: line ")
    assert source[:1000] in rendered
    assert len(rendered.encode()) <= MAX_OUTPUT_BYTES


@pytest.mark.parametrize("source", ENDED.values(), ids=ENDED)
def test_a_greedy_template_ends_within_its_bounds(source: str) -> None:  # F22
    clock = Clock()
    rendered = compile_template(source).render(HUGE, Allowance(clock)).text
    again = compile_template(source).render
    assert takes_less_than(2, lambda: again(HUGE, Allowance(Clock()))), "work that no step pays for"
    assert len(rendered.encode()) <= MAX_OUTPUT_BYTES
    # Every look at the clock but the first is paid for with steps, so few looks are little work.
    assert clock.looks <= MAX_STEPS // 1_000 + 1
    assert "secret-value" not in rendered
    for leak in ("<class", "<built-in", "<bound", "<function", "object at 0x"):
        assert leak not in rendered


class Clock:
    """CPU time that passes by `step` seconds with every look, none unless told."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += self.step
        return self.now


def test_a_rendering_ends_when_its_cpu_time_is_over() -> None:  # F22
    rendered = compile_template(_OVER + "{{ x }}" + _END).render(HUGE, Allowance(Clock(MAX_CPU_SECONDS))).text
    assert rendered.startswith("0123")
    assert rendered.endswith("[template cut: more than 50 ms]")


@pytest.mark.parametrize("at", [1, 2, 3, 10])
def test_a_pause_of_the_machine_cuts_no_text(at: int) -> None:  # F22
    """A collection of garbage, a virtual machine that was not run: CPU time that no work can have taken."""

    class Paused(Clock):
        def __call__(self) -> float:
            super().__call__()
            return self.now + (3_600 if self.looks > at else 0)

    long = "{% for x in $tenant.list[:9000] %}{{ x }}{% endfor %}"
    for source in (*["{{ $vars.v1 }}"] * 5, long):
        expected = render_source(source, HUGE, Allowance(Clock()))
        assert "template cut" not in expected.text
        allowance = Allowance(Paused())
        assert render_source(source, HUGE, allowance) == expected
        assert not allowance.is_spent


def test_texts_that_are_slow_one_after_the_other_are_cut() -> None:  # F22
    allowance = Allowance(Clock(MAX_CPU_SECONDS))
    texts = [render_source("{{ $vars.v1 }}", HUGE, allowance).text for _ in range(20)]
    assert texts[0] == texts[5] != texts[-1]
    assert texts[-1] == "[template cut: the texts of this task take too long]"


def test_a_rendering_is_cut_at_the_same_step_every_time() -> None:  # F22
    template = compile_template(_OVER + "{{ x }}" + _END)
    rendered = template.render(HUGE, Allowance(Clock())).text
    assert rendered.endswith(f"[template cut: more than {MAX_STEPS} steps]")
    assert template.render(HUGE, Allowance(Clock())).text == rendered


def test_output_is_cut_between_characters_with_what_fits_and_a_marker() -> None:  # F22
    rendered = compile_template("a{{ $tenant.text }}").render(HUGE).text
    assert rendered.startswith("aèè")
    assert rendered.endswith(f"è[template cut: more than {MAX_OUTPUT_BYTES} bytes of output]")
    assert MAX_OUTPUT_BYTES - 200 < len(rendered.encode()) <= MAX_OUTPUT_BYTES


def test_a_stock_sandbox_renders_what_is_refused_here() -> None:  # F22
    """The negative control, with widths that a test machine bears; the stock sandbox has no limit."""
    stock = SandboxedEnvironment()
    for source in ("{{ '{:>10000000}'.format(1) }}", "{{ 'a' * 10 ** 7 }}"):
        assert len(stock.from_string(source).render()) == 10_000_000
        with pytest.raises(CorrectTheInput):
            compile_template(source)


def test_a_template_of_the_permitted_size_is_compiled_even_when_it_is_prose() -> None:  # F22
    source = "a" * MAX_SOURCE_BYTES
    assert compile_template(source).render(HUGE).text == source


_FRAGMENTS = st.sampled_from(
    [
        "}}",
        "{{",
        "%}",
        "{%",
        "{#",
        "#}",
        "{%-",
        "-%}",
        "raw",
        "endraw",
        "if",
        "elif",
        "else",
        "endif",
        "for",
        "endfor",
        "in",
        "is",
        "not",
        "and",
        "or",
        "x",
        "loop",
        "set",
        "endset",
        "macro",
        "call",
        "filter",
        "include",
        "import",
        "from",
        "block",
        "self",
        "$vars",
        "$values",
        "$tenant",
        "$",
        "$$",
        "$vars.v1",
        ".list",
        ".deep",
        ".number",
        ".circle",
        ".text",
        ".object",
        ".nan",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "[0]",
        "[1:]",
        "[::0]",
        ":",
        ",",
        ".",
        "|",
        "upper",
        "|join",
        "|int",
        "|round",
        "|replace('','b')",
        "|default",
        "|first",
        "|title",
        "defined",
        "none",
        "true",
        "'a'",
        '"',
        "'",
        "\\",
        "0",
        "1",
        "1.5",
        "9999999999999999",
        "+",
        "-",
        "~",
        "*",
        "/",
        "%",
        "**",
        "==",
        "!=",
        "<",
        ">=",
        "=",
        "===",
        "&&",
        "||",
        "?",
        "`",
        "!",
        "${",
        "__class__",
        "_",
        "è",
        "٣",
        "\n",
        "\r\n",
        "\x00",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(_FRAGMENTS, max_size=30), st.sampled_from(["", " "]), st.booleans())
def test_no_source_raises_anything_else_at_compile_or_anything_at_render(
    fragments: list[str], glue: str, in_tag: bool
) -> None:  # F22
    source = glue.join(fragments)
    if in_tag:
        source = "{{ " + source + " }}"
    with suppress(CorrectTheInput):
        compile_template(source)
    template = compile_template(source, lenient=True)
    rendered = template.render(HUGE, Allowance(Clock())).text
    assert len(rendered.encode(errors="replace")) <= MAX_OUTPUT_BYTES
    errors, warnings = lint_template(source, ["v1"], "/prompt")
    assert bool(errors) <= bool(template.problems)
    assert bool(template.problems) <= bool(errors or warnings)


_AROUND_PATHS = st.sampled_from(
    [
        *("{{", "}}", "{{-", "-}}", "{", "}", " ", "\n", "\r\n", "#", "text", "|upper", "[0]"),
        *("$vars", "$values", "$tenant", "$channel", "$nobody"),
        *(".", ".v1", ".name", ".length", "._id", "._secret", ".not", ".è", ".1"),
        *("{% if $channel %}", "{% endif %}", "{% for a in $contact.tags %}", "{% endfor %}"),
        *("{%if\t$values.v1%}", "{% if $vars.v1 %}", "{% if $a.b.c.length %}", "{% if $contact._secret %}"),
        *("{% elif  $tenant.name %}", "{% else %}", "{%endif%}", "${vars.v1}"),
        *(
            "{{$vars.v1}}",
            "{{$tenant.a.b}}",
            "{{$a.b.c.d.e.f.g.h.i.j}}",
            "{{$vars.not}}",
            "{{$contact._secret}}",
        ),
        *("{{ $values.v1 }}", "{{\n$tenant.name\t}}", "{{ $vars." + "v" * 70 + " }}"),
    ]
)


def _read(source: str) -> object:
    """All that a template says of itself, with what it renders and pays."""
    template, allowance = compile_template(source, lenient=True), Allowance(Clock())
    rendered = None if template.problems else template.render(HUGE, allowance)
    return (
        # Where in the source a character stood is another number behind a plus.
        [(found.line, found.code, re.sub(r" at \d+$", "", found.message)) for found in template.problems],
        template.suspicions,
        template.uses,
        template.reads,
        rendered,
        allowance.steps_left,
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(_AROUND_PATHS, max_size=24).map("".join).filter(lambda source: "{{{" not in source))
def test_a_path_alone_in_braces_is_what_the_parser_reads_there(source: str) -> None:  # F22
    # Where a tag begins, a plus means nothing, and no shortcut takes it.
    by_parser = re.sub(r"\{\{(?=\s*\$)|\{%(?=\s*(?:if|el|end))", lambda tag: f"{tag[0]}+", source)
    assert _read(source) == _read(by_parser)


@pytest.mark.parametrize("levels", range(44, 52))
@pytest.mark.parametrize("path", ["$channel", "$tenant.name", "$a.b.c.d.e.f.g.h"])
def test_a_path_alone_in_braces_is_as_deep_as_its_keys(levels: int, path: str) -> None:  # F22
    for inside in ("{{ " + path + " }}", "{% if " + path + " %}{% endif %}"):
        source = "{% if $channel %}" * levels + inside + "{% endif %}" * levels
        assert _read(source) == _read(source.replace("{{", "{{+").replace("{%", "{%+"))


@pytest.mark.parametrize("paths", [2500, 2501])
def test_a_path_alone_in_braces_is_as_many_tokens_as_its_names_and_dots(paths: int) -> None:  # F22
    source = "a{{ $tenant.name }}" * paths
    assert _read(source) == _read(source.replace("{{", "{{+"))


@pytest.mark.parametrize("conditions", [1538, 1539])  # of 13 tokens each
def test_a_condition_that_is_a_path_is_as_many_tokens_as_its_names_and_dots(conditions: int) -> None:  # F22
    source = "{% if $tenant.name %}{%endif %}" * conditions
    assert _read(source) == _read(source.replace("{%", "{%+"))
    assert bool(compile_template(source, lenient=True).problems) is (conditions > 1538)


def test_what_is_wrong_is_found_on_its_line_among_prose_paths_and_blocks() -> None:  # F9
    source = (
        "one\n{{ $tenant.a }}\n${vars.x}\n{% if\t$vars.v1 %}\nfive {{ $vars.v2 }}{% else %}\n{{ $values.v3 }}"
    )
    template = compile_template(source + "{% endif %}")
    assert [(found.line, found.code) for found in template.suspicions] == [
        (3, "template_javascript"),
        (4, "template_reference_as_value"),
    ]
    assert [(use.line, use.key) for use in template.uses] == [(4, "v1"), (5, "v2"), (6, "v3")]


def test_braces_in_a_raw_block_are_text_beside_paths() -> None:  # F22
    source = "{{ $channel }} {% raw %}{{ $channel }}{% if $channel %}{% endraw %} {{ $channel }}"
    assert compile_template(source).render(HUGE).text == (
        f"{HUGE.channel} {{{{ $channel }}}}{{% if $channel %}} {HUGE.channel}"
    )

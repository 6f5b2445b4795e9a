"""What templates mean, and what is said about them at the save."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from flow_engine.errors import CorrectTheInput
from flow_engine.templates import TemplateScope, compile_template, lint_template, parsing
from flow_engine.templates.parsing import MAX_SOURCE_BYTES

SCOPE = TemplateScope(
    variables={"v1": "idPrestazione", "idPrestazione": "idPrestazione", "my var": "my var", "città": "città"},
    values={
        "idPrestazione": "RX-12",
        "v1": "RX-12",
        "count": 3,
        "flag": True,
        "nothing": None,
        "parts": {"name": "Ada", "tags": ["a", "b"], "none": None},
    },
    tenant={"name": "Clinica", "hours": {"open": "8:00"}, "sites": [{"city": "Roma"}, {"city": "Bari"}]},
    contact={"phone": "+390612345", "tags": []},
    channel="voice",
    language="it",
    flow={"_id": "f-1", "name": "Booking"},
    task={"name": "Ask"},
)


def render(source: str, scope: TemplateScope = SCOPE) -> str:
    return compile_template(source).render(scope).text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ $vars.idPrestazione }}", "memory->idPrestazione"),
        ("{{$vars.v1}}", "memory->idPrestazione"),
        ('{{ $vars["my var"] }}', "memory->my var"),
        ("{{ $vars.città }}", "memory->città"),
        ("{{ $values.idPrestazione }}", "RX-12"),
        ("{{ $values.count }} {{ $values.flag }}", "3 true"),
        ("[{{ $values.nothing }}{{ $values['my var'] }}]", "[]"),
        ("{{ $values.parts }}", '{"name": "Ada", "tags": ["a", "b"], "none": null}'),
        ("{{ $values.parts.name }}{{ $values.parts.other.deeper }}", "Ada"),
        ("{{ $tenant.hours.open }} {{ $tenant.sites[1].city }} {{ $tenant.sites.0.city }}", "8:00 Bari Roma"),
        ("{{ $contact.phone }} {{ $channel }} {{ $language }}", "+390612345 voice it"),
        ("{{ $flow._id }} {{ $flow.name }} {{ $task.name }}", "f-1 Booking Ask"),
    ],
)
def test_a_dollar_name_renders_what_it_stands_for(source: str, expected: str) -> None:  # F22
    assert render(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ $vars.foo }}", "[unknown: $vars.foo]"),
        ("{{ $vars['a b'] }}", "[unknown: $vars['a b']]"),
        ("{{ $values.foo }}", "[unknown: $values.foo]"),
        ("{{ $tenant.hours.closed }}", "[unknown: $tenant.hours.closed]"),
        ("{{ $tenant.nope.deeper }}", "[unknown: $tenant.nope.deeper]"),
        ("{{ $tenant.sites[7] }}", "[unknown: $tenant.sites[7]]"),
        ("{{ $nope }} {{ nope }} {{ vars.v1 }}", "[unknown: $nope] [unknown: nope] [unknown: vars.v1]"),
        ("{{ $vars }} {{ $values }}", "[unknown: $vars] [unknown: $values]"),
        ("{{ $vars.v1.part }}", "[unknown: $vars.v1.part]"),
        ("{{ $tenant.nope | upper }}", "[unknown: $tenant.nope]"),
        ("{% for x in $tenant.nope %}{% endfor %}", "[unknown: $tenant.nope]"),
        ("{% for x in $tenant.name %}{{ x }}{% endfor %}", "[not a list: $tenant.name]"),
        ("{{ 1 + 'a' }} {{ -'a' }}", "[not numbers: +] [not numbers: -]"),
        (
            "{{ 3 | first }} {{ 'a' | round }}",
            "[first cannot take this value] [round cannot take this value]",
        ),
    ],
)
def test_what_is_not_there_becomes_a_visible_marker(source: str, expected: str) -> None:  # F22
    assert render(source) == expected


@pytest.mark.parametrize(
    "source",
    ["{{ $tenant[$contact.phone] }}", "{{ $vars[$contact.phone].x }}", "{{ $values[$contact.phone] }}"],
)
def test_a_marker_never_shows_a_value(source: str) -> None:  # F22
    assert "390612345" not in render(source)
    assert "[unknown: " in render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if $channel == 'voice' %}say{% elif $channel == 'chat' %}type{% else %}mail{% endif %}", "say"),
        ("{{ 'yes' if $values.flag and not $contact.tags else 'no' }}", "yes"),
        ("{{ 'yes' if $values.nothing }}", ""),
        ("{{ 1 < 2 <= 2 }} {{ 'a' < 1 }} {{ 'b' > 'a' }}", "true false true"),
        ("{{ 'a' in ['a', 'b'] }} {{ 'z' not in 'abc' }} {{ 'open' in $tenant.hours }}", "true true true"),
        ("{{ $values.nothing == none }} {{ $tenant.nope == none }}", "true false"),
        (
            "{{ $vars.v1 is defined }} {{ $vars.zz is defined }} {{ $tenant.nope is undefined }}",
            "true false true",
        ),
        ("{{ $tenant.sites is sequence }} {{ $tenant is mapping }} {{ 1 is string }}", "true true false"),
        ("{{ [1, ['a']] == [1, ['a']] }}", "true"),
        ("{{ $values.count + 1 - 2 }} {{ -$values.count }} {{ 'a' + 'b' }}", "2 -3 ab"),
        ("{{ $channel ~ 1 ~ true ~ none ~ $values.parts.tags }}", 'voice1true["a", "b"]'),
        ("{{ 0 }} {{ 00 }} {{ 00.5 }}", "0 0 0.5"),
        ("{{ 'abcdef'[1:3] }} {{ [1, 2, 3][::-1] }} {{ 'abc'[0] }}", "bc [3, 2, 1] a"),
        ("{{ 'a\\n\\'b\\'\\u00e8' }}", "a\n'b'è"),
    ],
)
def test_conditions_and_operators_follow_jinja(source: str, expected: str) -> None:  # F22
    assert render(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ $values.nothing | default('none') }} {{ $tenant.nope | default('n/a') }}", "none n/a"),
        ("{{ '' | default('x') }}{{ '' | default('x', true) }}{{ 'k' | default('x', boolean=true) }}", "xk"),
        ("{{ 'dell\\'anno' | title }} {{ ' a ' | trim | upper }} {{ 'È' | lower }}", "Dell'anno A è"),
        ("{{ $values.parts.tags | join(', ') }} {{ $values.parts.tags | length }}", "a, b 2"),
        ("{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first }}{{ $values.nothing | length }}", "120"),
        ("{{ 2.555 | round(1) }} {{ '7' | int + 1 }} {{ 'x' | int(5) }} {{ '1.5' | float }}", "2.6 8 5 1.5"),
        ("{{ 'a-b' | replace('-', '+') }} {{ 12 | string + '!' }}", "a+b 12!"),
    ],
)
def test_the_filters_follow_jinja(source: str, expected: str) -> None:  # F22
    assert render(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% for s in $tenant.sites %}{{ loop.index }}/{{ loop.length }}{{ s.city }} {% endfor %}",
            "1/2Roma 2/2Bari ",
        ),
        ("{% for s in [1, 2] %}{{ s }}{% if not loop.last %}; {% endif %}{% endfor %}", "1; 2"),
        ("{% for s in $tenant.sites if s.city == 'Bari' %}{{ s.city }}{% else %}-{% endfor %}", "Bari"),
        ("{% for s in $contact.tags %}{{ s }}{% else %}-{% endfor %}", "-"),
        (
            "{% for a in [1, 2] %}{% for b in [3] %}{{ a }}{{ b }} {% endfor %}{{ loop.index }}{% endfor %}",
            "13 123 2",
        ),
        ("{% for key in $tenant.hours %}{{ key }}={{ $tenant.hours[key] }}{% endfor %}", "open=8:00"),
    ],
)
def test_loops_filter_count_nest_and_fall_back(source: str, expected: str) -> None:  # F22
    assert render(source) == expected


def test_a_loop_variable_ends_with_its_loop() -> None:  # F22
    assert render("{% for x in [1] %}{% endfor %}{{ x }}{{ loop }}") == "[unknown: x][unknown: loop]"


def test_raw_blocks_comments_strings_and_prose_keep_their_dollars() -> None:  # F22
    assert render("{% raw %}{{ $vars.x }}{% endraw %}") == "{{ $vars.x }}"
    assert render("a{# {{ $vars.x }} #}b") == "ab"
    assert (
        render("{{ '$vars.x' }} costs $5 and ${x} and {a} {{ $channel }}")
        == "$vars.x costs $5 and ${x} and {a} voice"
    )


def test_whitespace_control_and_the_last_newline_are_kept() -> None:  # F22
    assert render("a \n{%- if true -%}\n b {%- endif %}\n") == "ab\n"


def test_html_is_not_escaped() -> None:  # F22
    assert render("{{ '<b>&' }}") == "<b>&"


def test_a_template_is_compiled_once() -> None:  # F22
    assert compile_template("once {{ $channel }}") is compile_template("once {{ $channel }}")


def test_rendering_reads_the_scope_it_is_given() -> None:  # F23
    template = compile_template("{{ $channel }}")
    assert template.render(SCOPE).text == "voice"
    assert template.render(replace(SCOPE, channel="mail")).text == "mail"


@given(st.text(alphabet=st.characters(exclude_characters="{", exclude_categories=["Cs"])))
def test_text_without_braces_renders_to_itself(source: str) -> None:  # F22
    assert render(source) == source


_VALUES = st.sampled_from(["$channel", "$tenant.name", "'x y'", "3", "12", "$task.name", "[1, 'b']"])
_EXPRESSIONS = st.recursive(
    _VALUES,
    lambda inner: st.one_of(
        st.builds("({} ~ {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} == {})".format, inner, inner),
        st.builds("({} and not {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("({} | string | {})".format, inner, st.sampled_from(["upper", "title", "length", "trim"])),
        st.builds("({} in [{}, {}])".format, inner, inner, inner),
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS)
def test_expressions_mean_what_they_mean_in_jinja(expression: str) -> None:  # F22
    """Only the spelling of what is not text differs: JSON here, Python's there."""
    names = {"channel": SCOPE.channel, "tenant": SCOPE.tenant, "task": SCOPE.task}
    stock = Environment()
    spelled = f"{{% if {expression} %}}yes{{% else %}}no{{% endif %}}"
    assert render(spelled) == stock.from_string(spelled.replace("$", "")).render(names)
    if (
        "==" not in expression
        and "not" not in expression
        and " in " not in expression
        and "[" not in expression
    ):
        printed = f"{{{{ {expression} }}}}"
        assert render(printed) == stock.from_string(printed.replace("$", "")).render(names)


class TestLint:
    KNOWN = ("v1", "idPrestazione", "my var")

    def warned(self, source: str) -> list[tuple[str, str]]:
        errors, warnings = lint_template(source, self.KNOWN, "/tasks/0/prompt")
        assert errors == []
        assert {finding.pointer for finding in warnings} <= {"/tasks/0/prompt"}
        return [(finding.code, finding.message) for finding in warnings]

    @pytest.mark.parametrize(
        "source",
        [
            "",
            "text",
            "$5",
            "{{ $vars.v1 }} {{ $values['my var'] }} {{ $tenant.a.b }}",
            "{% raw %}{{ a && b }}{% endraw %}",
            "{{ 'a && b ? c' }}",
            "{% for x in $tenant.l %}{{ loop.length }}{{ x.a }}{% endfor %}",
            "{{ $flow.id }} {{ $flow.versionId }} {{ $flow['campaignId'] }} {{ $channel[:2] }}",
            "{{ $task.id }} {{ $task.name }} {{ $task.type }} {{ $task[$contact.key] }} {{ $contact.any }}",
        ],
    )
    def test_a_sound_template_has_no_findings(self, source: str) -> None:  # F9
        assert self.warned(source) == []

    def test_an_unknown_variable_is_told_with_its_line_and_the_known_ones(self) -> None:  # F9
        assert self.warned("a\n{{ $vars.foo }}") == [
            (
                "template_unknown_name",
                "line 2: $vars.foo: no variable 'foo'; there are 'idPrestazione', 'my var', 'v1'",
            )
        ]

    def test_a_name_with_a_hyphen_that_was_taken_for_a_subtraction_is_told_with_how_it_is_written(
        self,
    ) -> None:  # F9
        _, warnings = lint_template("{{ $values.pick-up-day }}", {"pick-up", "pick-up-day"}, "/p")
        hint = "$values.pick: no variable 'pick'; write $values[\"pick-up-day\"]"
        assert any(each.message.endswith(hint) for each in warnings)

    def test_the_time_for_unknown_names_grows_with_the_template_and_no_faster(self) -> None:  # F9
        """Four times as many take four times as long, where each looked through all of them sixteen times."""

        def seconds(names: int) -> float:
            source = "".join(f"{{{{ $vars.n{number} }}}}" for number in range(names))
            started = time.process_time()
            assert len(lint_template(source, {"pick-up"}, "/p")[1]) == names
            return time.process_time() - started

        assert min(seconds(2_400) / seconds(600) for _ in range(3)) < 9

    @pytest.mark.parametrize("word", ["else if", "elseif", "elsif"])
    def test_a_second_condition_is_told_with_how_it_is_written(self, word: str) -> None:  # F9
        ((code, message),) = self.warned(f"{{% if $channel %}}a{{%- {word} $language %}}b{{% endif %}}")
        assert (code, message.rpartition("; ")[2]) == ("template_syntax", f"`{word}` is written elif")

    @pytest.mark.parametrize(
        ("source", "hint"),
        [
            ("{{ vars.v1 }}", "write $vars"),
            ("{{ $varz.v1 }}", "templates know $channel, $contact, $flow"),
            ("{{ self }}", "'self' is unknown"),
            ("{{ $vars }}", "$vars needs the name of a variable"),
            ("{{ $vars.v1.part }}", "use $values"),
            ("{{ $flow.zzz }}", "$flow.zzz: $flow has no 'zzz'; it has 'campaignId', 'id', 'versionId'"),
            ("{% if $task['nope'] == 'a' %}b{% endif %}", "it has 'id', 'name', 'type'"),
            ("{{ $channel.name }}", "$channel has no 'name'; it is a text; write $channel"),
            ("{{ $language.code }}", "it is a text; write $language"),
        ],
    )
    def test_an_unknown_name_is_told_with_what_is_known(self, source: str, hint: str) -> None:  # F9
        ((code, message),) = self.warned(source)
        assert code == "template_unknown_name"
        assert hint in message

    @pytest.mark.parametrize(
        ("source", "hint"),
        [
            ("{{ $values.v1 === 'a' }}", "'===' is JavaScript; write =="),
            ("{{ 'b' if $values.v1 !== 'a' }}", "write !="),
            ("{{ $tenant.a?.b }}", "a plain dot"),
            ("{% if $values.v1 && true %}{% endif %}", "write and"),
            ("{{ $values.v1 || 'x' }}", "write or"),
            ("{{ $values.v1 ?? 'x' }}", "default"),
            ("{{ $values.v1 ? 'x' : 'y' }}", "a if condition else b"),
            ("{{ !$values.v1 }}", "write not"),
            ("{{ x => x }}", "functions do not exist"),
            ("{{ `a` }}", "quotes and ~"),
            ("{{ $values.v1.toUpperCase() }}", "the filter upper"),
            ("{{ $values.v1.length }}", "the filter length"),
            ("{{ $values.v1 == null }}", "write none"),
            ("call ${vars.v1} now", "'${vars.v1}' is JavaScript and stays as it is"),
            ("{{ $channel }}\ncall ${ $vars.v1 } now", "line 2"),
        ],
    )
    def test_javascript_is_told_with_the_form_to_write(self, source: str, hint: str) -> None:  # F9
        code, message = self.warned(source)[0]
        assert code == "template_javascript"
        assert hint in message

    def test_every_javascript_operator_is_told_at_once(self) -> None:  # F9
        assert len(self.warned("{{ a && b || !c }}\n{{ c === d }}\n{{ `e` }}")) == 6

    @pytest.mark.parametrize(
        "source",
        ["{{ a b }}", "{% if %}{% endif %}", "{% foo %}", "{{ 'a }}", "{{ 1__0 }}", "{% endif %}"],
    )
    def test_bad_syntax_is_a_warning(self, source: str) -> None:  # F9
        assert [code for code, _ in self.warned(source)] == ["template_syntax"]

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ",
            "{{ $vars.x",
            "{{ $vars.x } {{ $channel }}",
            "{% if true %}x",
            "{% for",
            "{# x",
            "{% raw %}x",
        ],
    )
    def test_a_tag_or_block_without_an_end_is_an_error(self, source: str) -> None:  # D10
        errors, _ = lint_template(source, {"x"}, "/p")
        assert [finding.code for finding in errors] == ["template_unclosed"]

    @pytest.mark.parametrize("source", ["{{ $channel }} }}", "a } b }} c", "{% raw %}{{ x {% endraw %}"])
    def test_ends_without_a_tag_are_prose(self, source: str) -> None:  # D10
        assert lint_template(source, set(), "/p") == ([], [])

    @pytest.mark.parametrize("source", ["{{ 0039 }}", "{{ $tenant.a.0039 }}", "{{ [\n0039] }}"])
    def test_a_number_with_zeros_in_front_is_a_warning_that_says_what_to_write(
        self, source: str
    ) -> None:  # F9
        ((code, message),) = self.warned(source)
        assert code == "template_syntax"
        assert "'0039' begins with 0; write 39, or quotes" in message

    @pytest.mark.parametrize(
        "source",
        [
            "{% if $vars.v1 == 'x' %}{% endif %}",
            "{{ 'a' if $vars.v1 }}",
            "{{ not $vars.v1 }}",
            "{% for x in $vars.v1 %}{% endfor %}",
        ],
    )
    def test_a_reference_where_a_value_decides_is_a_warning(self, source: str) -> None:  # F9
        ((code, message),) = self.warned(source)
        assert code == "template_reference_as_value"
        assert "write $values.v1" in message

    def test_forbidden_constructs_are_errors_and_all_of_them_are_told(self) -> None:  # F9
        errors, _ = lint_template("{{ a() }}\n{% set x = 1 %}{{ 2 * 3 }}\n{{ b | attr('c') }}", (), "/prompt")
        assert [finding.code for finding in errors] == ["template_forbidden"] * 4
        assert [finding.message.split(":")[0] for finding in errors] == [
            "line 1",
            "line 2",
            "line 2",
            "line 3",
        ]

    def test_a_source_beyond_the_limit_is_an_error(self) -> None:  # F9
        errors, warnings = lint_template("è" * (MAX_SOURCE_BYTES // 2 + 1), (), "")
        assert [finding.code for finding in errors] == ["template_too_large"]
        assert warnings == []


@pytest.mark.parametrize("source", ["{{ a === b }}", "{{ a() }}", "{{ a b }}", "x" * (MAX_SOURCE_BYTES + 1)])
def test_an_unusable_template_is_refused_or_renders_as_itself_under_a_marker(source: str) -> None:  # F22
    with pytest.raises(CorrectTheInput) as caught:
        compile_template(source)
    assert caught.value.code == "template_invalid"
    assert caught.value.findings[0].message.startswith("line 1: ")
    rendered = compile_template(source, lenient=True).render(SCOPE).text
    assert rendered.startswith("[template error: line 1: ")
    assert rendered.endswith(source)


POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")
"""Also a group that is atomic. Python 3.11.0 to 3.11.4 lose matches of them, and leave the text as it is."""


def test_no_rule_of_the_lexer_repeats_a_group_possessively() -> None:  # F9
    rules = [rule for state in parsing._ENVIRONMENT.lexer.rules.values() for rule in state]  # pyright: ignore[reportPrivateUsage]
    patterns = [rule.pattern.pattern for rule in rules]
    assert len(patterns) > 10
    assert [found for found in patterns if POSSESSIVE_GROUP.search(found)] == []
    assert all(map(POSSESSIVE_GROUP.search, ("(ab)*+", "(ab)++", "(ab){0,7}+", "(?>ab)")))
    assert not any(map(POSSESSIVE_GROUP.search, ("[ab]*+", "(ab)*", "a{2}+")))

"""Templates: what they give, what they leave out, what they refuse to be read as."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.http_tools.scope import Scope
from channels.http_tools.templates import JsonTemplate, Mistakes, Template, TemplateMistake
from flow_engine.values import JsonValue

SCOPE = Scope(
    specials={"caller_phone": "+33612345678", "error": "late", "now_iso": "2026-11-20T10:00:00Z"},
    pre={"order": {"id": "o-7", "status": "pending"}},
    args={
        "n": 4,
        "price": 9.5,
        "long": " 1234567890123456789 ",
        "longer": "-9007199254740993.9",
        "too_long": "9" * 30,
        "urgent": False,
        "text": "12",
        "word": "twelve",
        "none": None,
        "list": [1, {"a": "b"}],
        "first name": "Zoé",
    },
    ctx={"call_id": "c-1", "items": [{"name": "Margherita"}, {"name": "Regina"}]},
    session={"customerContext": {"firstName": "Ada"}},
    agent={"id": "a-1", "name": "Pizza"},
    root={"base_url": "http://localhost:3000"},
)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "order", "error"]), values, max_size=3)
scopes = st.builds(
    Scope,
    specials=objects,
    pre=objects,
    args=objects,
    ctx=objects,
    session=values,
    agent=objects,
    root=objects,
)
paths = st.sampled_from(
    ["a", "error", "args.a", "ctx.b.a", "pre.order", "session", "session.0", "agent", "ctx['a'][-1]"]
)
filters = st.sampled_from(
    [" | json", " | int", " | float", " | default(ctx.a)", " | default('x}}')", "|default(-1.5)"]
)
placeholders = st.tuples(paths, st.lists(filters, max_size=3).map("".join)).map(
    lambda made: "{{" + "".join(made) + "}}"
)


def render(text: str, scope: Scope = SCOPE) -> JsonValue:
    return Template.parse(text).render(scope)


class TestASinglePlaceholder:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("{{args.n}}", 4),
            ("{{ args.price }}", 9.5),
            ("{{args.urgent}}", False),
            ("{{args.list}}", [1, {"a": "b"}]),
            ("{{args.none}}", None),
            ("{{args['first name']}}", "Zoé"),
            ("{{caller_phone}}", "+33612345678"),
            ("{{pre.order.status}}", "pending"),
            ("{{ctx.items[1].name}}", "Regina"),
            ("{{ctx.items.1.name}}", "Regina"),
            ("{{ctx.items[-1].name}}", "Regina"),
            ("{{ctx.items[2].name}}", None),
            ("{{session.customerContext.firstName}}", "Ada"),
            ("{{agent.id}}", "a-1"),
            ("{{base_url}}", "http://localhost:3000"),
            ("{{nowhere.to.be.found}}", None),
            ("{{args.n.deeper}}", None),
            ("{{session}}", {"customerContext": {"firstName": "Ada"}}),
        ],
    )
    def test_gives_the_value_as_it_is(self, text: str, value: JsonValue) -> None:  # V8
        given_value = render(text)
        assert given_value == value
        assert type(given_value) is type(value)

    @given(values)
    def test_keeps_every_type(self, value: JsonValue) -> None:  # V8
        assert render("{{args.a}}", Scope(args={"a": value})) is value

    @given(values)
    def test_beside_anything_else_makes_text(self, value: JsonValue) -> None:
        """The negative of the law above: one more character, and it is text."""
        assert isinstance(render("{{args.a}} ", Scope(args={"a": value})), str)  # V8


class TestText:
    @pytest.mark.parametrize(
        ("text", "rendered"),
        [
            ("", ""),
            ("no template } } { {", "no template } } { {"),
            ("order #{{args.n}} of {{agent.name}}", "order #4 of Pizza"),
            ("<{{args.none}}>", "<>"),
            ("<{{args.urgent}}>", "<false>"),
            ("<{{args.list}}>", '<[1,{"a":"b"}]>'),
            ("{{args.n}}{{args.n}}", "44"),
        ],
    )
    def test_holds_the_values_as_text(self, text: str, rendered: str) -> None:  # V8
        assert render(text) == rendered

    def test_may_be_as_long_as_a_prompt(self) -> None:  # V8
        assert len(str(render("x" * 100_000 + "{{args.n}}" + "y" * 100_000))) == 200_001

    def test_a_value_is_never_read_as_a_template_itself(self) -> None:  # V8
        assert render("<{{args.a}}>", Scope(args={"a": "{{ctx.b}}"}, ctx={"b": "secret"})) == "<{{ctx.b}}>"


class TestFilters:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("{{args.none | default(caller_phone)}}", "+33612345678"),
            ("{{args.n | default(caller_phone)}}", 4),
            ("{{args.urgent | default(true)}}", False),
            ("{{args.none | default('it''s')}}", None),
            ("{{args.none | default('a}}b')}}", "a}}b"),
            ('{{args.none | default("x\\"y")}}', 'x"y'),
            ("{{args.none | default(7)}}", 7),
            ("{{args.none | default(-2.5)}}", -2.5),
            ("{{args.none | default(true)}}", True),
            ("{{args.none | default(null)}}", None),
            ("{{args.none | default(args.gone) | default(args.text) | int}}", 12),
            ("{{args.list | json}}", '[1,{"a":"b"}]'),
            ("{{args.text | json}}", '"12"'),
            ("{{args.none | json}}", None),
            ("{{args.text | int}}", 12),
            ("{{args.text | float}}", 12.0),
            ("{{args.price | int}}", 9),
            ("{{args.n | float}}", 4.0),
            ("{{args.word | int}}", None),
            ("{{args.long | int}}", 1234567890123456789),
            ("{{args.longer | int}}", -9007199254740993),
            ("{{args.too_long | int}}", None),
            ("{{args.list | float}}", None),
            ("{{args.word | int | default(1)}}", 1),
        ],
    )
    def test_change_the_value(self, text: str, value: JsonValue) -> None:  # V8
        if "''" in text:
            with pytest.raises(TemplateMistake):
                render(text)
            return
        given_value = render(text)
        assert given_value == value
        assert type(given_value) is type(value)

    @pytest.mark.parametrize(
        "value", ["9" * 5000, "1e999", "-1e999", 10**400, "nan", "0x10", "1_0", "", "٣ "]
    )
    def test_a_number_that_json_cannot_hold_is_null(self, value: JsonValue) -> None:  # V8
        scope = Scope(args={"a": value})
        assert render("{{args.a | int}}", scope) is None
        assert render("{{args.a | float}}", scope) is None


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "at", "accepted"),
        [
            ("{{", 3, "a path"),
            ("a {{ctx.a", 10, "'}}'"),
            ("{{}}", 3, "a path"),
            ("{{ctx.a | upper}}", 11, "default(X), float, int, json"),
            ("{{ctx.a | default}}", 18, "'('"),
            ("{{ctx.a | default(}}", 19, "text in quotes"),
            ("{{ctx.a | default('x}}", 19, "no closing quote"),
            ("{{ctx.a ctx.b}}", 9, "'}}'"),
            ("{{ctx.a | default(99999999999999999999)}}", 19, "at most 64 bits"),
            ("{{ctx.a | default(5.)}}", 19, "as JSON writes them"),
            ("{{ctx..a}}", 6, "was not expected"),
            ("{{$.a}}", 3, "a path"),
            ("{{'text'}}", 3, "a path"),
            ("{{ctx.a == 1}}", 9, "'}}'"),
            ("{{__import__('os')}}", 13, "'}}'"),
        ],
    )
    def test_name_the_place_and_what_is_accepted(self, text: str, at: int, accepted: str) -> None:  # V1
        with pytest.raises(TemplateMistake) as caught:
            Template.parse(text)
        assert caught.value.at == at
        assert accepted in str(caught.value)

    def test_all_of_a_value_are_told_with_their_places(self) -> None:  # V1
        with pytest.raises(Mistakes) as caught:
            JsonTemplate.parse({"a": ["ok", "{{"], "b": {"c": "{{ctx.a | x}}"}, "{{k}}": 1})
        assert {at for at, _ in caught.value.found} == {("a", 1), ("b", "c"), ("{{k}}",)}

    def test_a_value_nested_without_end_is_one(self) -> None:  # V1
        deep: JsonValue = "x"
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(Mistakes):
            JsonTemplate.parse(deep)


class TestWholeValues:
    def test_leave_out_what_is_not_there_at_every_level(self) -> None:  # V8
        template = JsonTemplate.parse(
            {
                "id": "{{ctx.call_id}}",
                "gone": "{{args.gone}}",
                "in": {"gone": "{{args.gone}}", "n": "{{args.n}}"},
            }
        )
        assert template.render(SCOPE) == {"id": "c-1", "in": {"n": 4}}

    def test_keep_false_zero_and_empty_text(self) -> None:  # V8
        template = JsonTemplate.parse(
            {"a": "{{args.urgent}}", "b": "{{args.zero}}", "c": "", "d": "{{args.t}}"}
        )
        assert template.render(Scope(args={"urgent": False, "zero": 0, "t": ""})) == {
            "a": False,
            "b": 0,
            "c": "",
            "d": "",
        }

    def test_keep_a_null_that_the_config_writes_itself(self) -> None:  # V8
        assert JsonTemplate.parse({"assignee": None, "b": "{{args.gone}}"}).render(SCOPE) == {
            "assignee": None
        }

    def test_keep_the_places_of_a_list(self) -> None:  # V8
        assert JsonTemplate.parse(["{{args.gone}}", "{{args.n}}"]).render(SCOPE) == [None, 4]

    def test_an_answer_takes_from_the_reply(self) -> None:  # V6
        template = JsonTemplate.parse(
            {
                "id": "$.id",
                "all": "$",
                "first": "$.lines[0].name",
                "price": "$5",
                "n": "{{args.n}}",
                "x": "$.gone",
            },
            answer=True,
        )
        reply: JsonValue = {"id": 9, "lines": [{"name": "a"}]}
        assert template.render(SCOPE, reply) == {"id": 9, "all": reply, "first": "a", "price": "$5", "n": 4}

    def test_a_request_takes_a_dollar_for_text(self) -> None:  # V6
        assert JsonTemplate.parse({"a": "$.id"}).render(SCOPE, {"id": 1}) == {"a": "$.id"}


class TestForEverything:
    @given(st.lists(placeholders | st.text(alphabet="ab }|", max_size=5), max_size=4).map("".join), scopes)
    def test_rendering_never_fails(self, text: str, scope: Scope) -> None:  # V8
        template = Template.parse(text)
        template.render(scope)
        assert isinstance(template.render_text(scope), str)

    @given(st.text(alphabet="{}|ctx.a()'\"\\$[0] ", max_size=30))
    def test_reading_any_text_gives_a_template_or_a_mistake(self, text: str) -> None:  # V1
        try:
            template = Template.parse(text)
        except TemplateMistake as error:
            mistake = error
        else:
            assert template.placeholders or template.render(Scope()) == text
            return
        assert 1 <= mistake.at <= len(text) + 1

    @given(st.lists(st.text(alphabet="abc {}", max_size=4).filter(lambda text: "{{" not in text), max_size=3))
    def test_text_without_placeholders_is_itself(self, parts: Iterable[str]) -> None:  # V8
        text = "{".join(parts)
        if "{{" not in text:
            assert render(text) == text

    def test_values_that_json_cannot_hold_do_not_fail(self) -> None:  # V8
        deep: JsonValue = []
        for _ in range(5000):
            deep = [deep]
        for value in (deep, "\ud800", [10**30], float("nan")):
            Template.parse("a{{args.a}}{{args.a | json}}").render(Scope(args={"a": value}))

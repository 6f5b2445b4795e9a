"""What every importer builds on: names that stay apart, prompts that are text, conditions that hold."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.conditions.evaluation import Condition, Facts
from flow_engine.documents import normalise_name
from flow_engine.importing.drafts import Draft
from flow_engine.importing.elements import TaskDraft, condition_literal, identifier, joined
from flow_engine.templates import TemplateScope, compile_template
from flow_engine.variables import VariableIndex, VariableSpec
from tests.flow_engine.conditions.expressions import Stored, facts
from tests.flow_engine.importing.originals import Imported, errors_of

many = settings(max_examples=80, deadline=None)

BRACES = st.text(alphabet="{}%#a \n'\"$", max_size=24)
SCOPE = TemplateScope(
    variables={"name": "name"},
    values={"name": "Ada"},
    tenant={"plan": "gold"},
    contact={},
    channel="phone",
    language="en",
    flow={"_id": "f", "name": "Flow"},
    task={"name": "Task"},
)


def draft_with(*names: str) -> Draft:
    draft = Draft()
    for name in names:
        draft.variable(name, "string", "what it is")
    return draft


def rendered(original: str, draft: Draft | None = None) -> str:
    return compile_template((draft or Draft()).text(original)).render(SCOPE).text


def without_blanks(text: str) -> str:
    return re.sub(r"\s", "", text)


class TestPrompts:
    @many
    @given(text=BRACES)
    def test_a_text_without_placeholders_reads_as_it_was_but_for_blanks(self, text: str) -> None:
        if not re.search(r"\{\{\s*[^{}\s]", text):
            assert without_blanks(rendered(text)) == without_blanks(text)

    @pytest.mark.parametrize("before", ["", "{", "{{", "%", "{%", "{#", "}", "a {"])
    @pytest.mark.parametrize("after", ["", "}", "}}", "%}", "{", "{{"])
    def test_a_placeholder_is_one_whatever_stands_beside_it(self, before: str, after: str) -> None:
        """As `{{{ name }}}` of Mustache, which other systems write for a value as it is."""
        text = rendered(f"{before}{{{{ plan }}}}{after}")
        assert without_blanks(text) == without_blanks(f"{before}gold{after}")

    def test_a_variable_is_its_value_and_anything_else_came_with_the_contact(self) -> None:
        draft = draft_with("name")
        draft.defaults["plan"] = "it's basic"
        assert draft.text("Hello {{name}}, {{ plan }}, {{ other }}!") == (
            "Hello {{ $vars.name }}, {{ $tenant.plan | default('it\\'s basic') }}, {{ $tenant.other }}!"
        )
        draft.variable("plan", "string", "the plan")
        assert draft.text("{{ plan }}") == "{{ $vars.plan }}", "what is asked for has no default"

    @many
    @given(prompt=BRACES.filter(str.strip), description=BRACES)
    def test_every_prompt_of_an_original_is_one_that_a_save_takes(
        self, prompt: str, description: str
    ) -> None:
        draft = draft_with("name")
        task = draft.task("only", "Only")
        task.prompts, task.description = [prompt], description
        draft.global_prompt = prompt
        assert errors_of(draft.imported().document) == []


def test_what_a_variable_may_be_has_no_blanks_around_it() -> None:
    draft = Draft()
    draft.variable("size", "enum", "", ["S\t", " S", "M", "\n"])
    assert draft.variables["size"]["enumValues"] == ["S", "M"]


TITLES = st.text(alphabet="aAàÀß ẞ\t/-", max_size=6)


class TestNames:
    @many
    @given(names=st.lists(TITLES, min_size=1, max_size=6))
    def test_tasks_have_names_that_the_engine_tells_apart(self, names: list[str]) -> None:
        draft = Draft()
        made = [draft.task(f"task-{number}", name) for number, name in enumerate(names)]
        compared = [normalise_name(task.name) for task in made]
        assert len(set(compared)) == len(compared)
        assert errors_of(draft.imported().document) == []

    def test_a_name_that_is_taken_gets_a_number_and_a_long_one_is_cut(self) -> None:
        draft = Draft()
        found = [
            draft.task(str(n), name).name for n, name in enumerate(["Book it", "book  IT", "Bóok it", ""])
        ]
        assert found == ["Book it", "book IT 2", "Bóok it 3", "3"]
        assert draft.task("long", "x" * 500).name == "x" * 120

    @many
    @given(text=st.text(max_size=600))
    def test_an_identifier_is_one_that_a_path_can_hold(self, text: str) -> None:
        found = identifier(text)
        assert 1 <= len(found) <= 512
        assert "/" not in found
        assert found.strip()
        assert identifier(found) == found

    @pytest.mark.parametrize(
        "originals",
        [
            ("a/b", "a-b", "a-b-2"),
            ("a-b", "a/b"),
            ("x" * 513, "x" * 514, "x" * 512),
            ("unnamed", ""),
            ("unnamed", " "),
        ],
    )
    def test_what_the_original_tells_apart_has_ids_of_its_own(self, originals: tuple[str, ...]) -> None:
        draft = Draft()
        for number, name in enumerate(originals):
            kind = "number" if number else "custom"
            draft.variable(name, kind, "what it is")
            task = draft.task(name, name)
            task.needs[name], task.position = False, (number, 0)
            draft.tool(task, "t", "", results={name: "$.x"} if kind == "custom" else {})
        for source, target in pairwise(originals):
            draft.way(source, target, when=f"has({draft.value(source)})")
        draft.first_task, draft.global_tasks = originals[-1], [originals[-1]]
        found = Imported(draft.imported())
        ids = [each["_id"] for each in found.document["tasks"]]
        assert len(set(ids)) == len(ids) == len(originals)
        assert [each["_id"] for each in found.document["variables"]] == ids
        assert [each["type"] for each in found.document["variables"]].count("custom") == 1
        assert [list(task["connectionConditions"]) for task in found.document["tasks"][:-1]] == [
            [each] for each in ids[1:]
        ]
        assert found.document["firstTask"] == ids[-1]
        assert found.document["globalTasks"] == [ids[-1]]
        assert list(found.document["uiMetadata"]["positions"]) == ids
        told = [each["message"] for each in found.draft.remarks if "is another one" in each["message"]]
        assert {each.split()[1] for each in told} == {"task", "variable"}
        assert errors_of(found.document) == []

    def test_the_first_mention_of_a_variable_decides_its_type_and_the_first_prompt_its_prompt(self) -> None:
        draft = Draft()
        assert draft.variable("size", "enum", "", ["S", "M", "S", "", True, None]) == "size"
        draft.variable("size", "number", "How large it is")
        draft.variable("size", "string", "Something else")
        assert draft.variables["size"] == {
            "_id": "size",
            "name": "size",
            "type": "enum",
            "prompt": "How large it is",
            "enumValues": ["S", "M"],
        }
        told = "'size' is a variable of type enum: elsewhere it is "
        assert [each["message"] for each in draft.remarks] == [f"{told}number", f"{told}string"]
        draft.variable("empty", "enum", "Nothing to choose from", ["", None])
        assert draft.kind_of("empty") == "string"
        draft.variable("card", "string", "The card", sensitive=True)
        assert draft.variables["card"]["sensitive"] is True
        assert draft.kind_of("nobody") == ""

    def test_an_enum_has_the_values_of_every_mention(self) -> None:
        draft = Draft()
        for values in (["yes", "no"], ["no", "later"]):
            draft.variable("answer", "enum", "", values)
        assert draft.variables["answer"]["enumValues"] == ["yes", "no", "later"]
        assert draft.remarks == []


class TestWays:
    def draft(self) -> tuple[Draft, TaskDraft]:
        draft = draft_with("age")
        one, _ = draft.task("one", "One"), draft.task("two", "Two")
        draft.first_task = "one"
        return draft, one

    def test_two_ways_to_one_task_are_alternatives(self) -> None:
        draft, _ = self.draft()
        draft.way("one", "two", when="has(vars.age)", reason="the age is known.")
        draft.way("one", "two", when="channel == 'chat'", reason="they write")
        found = Imported(draft.imported())
        assert found.tasks["one"]["connectedTasks"] == ["two"]
        assert found.condition("one", "two") == {
            "when": "(has(vars.age)) or (channel == 'chat')",
            "reason": "the age is known.; or they write",
        }
        assert found.tasks["two"]["description"] == "Enter when: the age is known; or they write."
        assert errors_of(found.document) == []

    def test_a_way_without_a_condition_opens_all_of_them_and_the_model_judges_the_others(self) -> None:
        draft, _ = self.draft()
        draft.way("one", "two", when="has(vars.age)", place=("a",))
        draft.way("one", "two", when="channel == 'chat'", reason="they write", place=("b",))
        draft.way("one", "two", reason="they ask", place=("c",))
        found = Imported(draft.imported())
        assert found.condition("one", "two") == {}
        reasons = "has(vars.age); or they write and channel == 'chat'; or they ask"
        assert f"Go on to 'Two' when: {reasons}" in found.tasks["one"]["prompt"]
        assert found.tasks["two"]["description"] == f"Enter when: {reasons}."
        assert [(each["kept"], each["pointer"]) for each in found.draft.remarks] == [
            ("changed", "/a"),
            ("changed", "/b"),
        ]

    def test_conditions_that_are_too_long_together_are_the_model_s(self) -> None:
        draft, _ = self.draft()
        for number in range(100):
            draft.way("one", "two", when=f"vars.age == 'number {number}'", place=(number,))
        found = Imported(draft.imported())
        assert found.condition("one", "two") == {}
        assert [each["pointer"] for each in found.draft.remarks] == [f"/{number}" for number in range(100)]
        assert "vars.age == 'number 99'" in found.tasks["two"]["description"]
        assert errors_of(found.document) == []

    def test_a_way_to_itself_is_none(self) -> None:
        draft, one = self.draft()
        draft.way("one", "one", when="has(vars.age)")
        assert one.ways == {}

    def test_a_tool_without_an_address_is_expected_at_the_servers_own(self) -> None:
        draft, one = self.draft()
        draft.tool(one, "look_up", "Looks it up", server="crm", url="ftp://crm.example.com")
        draft.tool(one, "book", "Books it", server="crm", url="https://crm.example.com/mcp")
        found = Imported(draft.imported())
        assert {each["name"]: each["url"] for each in found.document["mcpServers"]} == {
            "imported-tools": "https://tools.invalid/mcp",
            "crm": "https://crm.example.com/mcp",
        }
        assert found.remark("") == (
            "changed",
            "the tools look_up are expected at an MCP server 'imported-tools': give it an address",
        )


VARIABLES = VariableIndex([VariableSpec("x", "x", "string"), VariableSpec("n", "n", "number")])
HOLDS = ("true == true", "1 < 2")
FAILS = ("true == false", "2 < 1")


def holds(text: str, known: Facts) -> bool | None:
    return Condition.compile(text, VARIABLES).truth(known)


class TestConditions:
    @many
    @given(value=st.text(alphabet="ab'\"\\ àé{}\n", max_size=10).map(str.strip))
    def test_a_literal_is_the_text_that_stood_there(self, value: str) -> None:
        plain = value.strip("\"'")
        if plain.strip():
            assert holds(f"vars.x == {condition_literal(value, 'string')}", facts({"x": plain})) is True

    @given(number=st.integers(-(10**14), 10**14) | st.decimals(-999, 999, places=3).map(float))
    def test_a_number_is_one_where_a_number_is_compared(self, number: float) -> None:
        text = f"{number:.3f}" if isinstance(number, float) else str(number)
        known = Facts(**{**vars_of(facts()), "memory": {"n": Stored(float(text))}})
        literal = condition_literal(f" {text} ", "number")
        assert holds(f"vars.n == {literal}", known) is True

    @pytest.mark.parametrize(
        ("value", "kind", "literal"),
        [
            ("12", "", "12"),
            ("12", "string", "'12'"),
            ("12", "custom", "12"),
            ("True", "custom", "true"),
            ("012", "number", "'012'"),
            ("TRUE", "", "true"),
            ("true", "string", "'true'"),
            ("yes", "boolean", "'yes'"),
            ('"quoted"', "", "'quoted'"),
        ],
    )
    def test_a_literal_is_of_the_type_that_it_is_compared_with(
        self, value: str, kind: str, literal: str
    ) -> None:
        assert condition_literal(value, kind) == literal

    @many
    @given(parts=st.lists(st.sampled_from([*HOLDS, *FAILS, ""]), max_size=4))
    def test_joined_conditions_mean_what_each_of_them_means(self, parts: list[str]) -> None:
        """An empty one lets everything pass."""
        truths = [part in {*HOLDS, ""} for part in parts]
        both, either = joined(parts, "and"), joined(parts, "or")
        assert (not both or holds(both, facts())) is all(truths)
        assert (not either or holds(either, facts())) is (any(truths) or not parts)


def vars_of(known: Facts) -> dict[str, object]:
    return {name: getattr(known, name) for name in Facts.__dataclass_fields__}

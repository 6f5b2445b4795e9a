"""What a prompt is made of, in which order, and what of it stays (F22–F24, F26)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from flow_engine.masking import Secrets
from flow_engine.runtime.agent_data import prompt_input
from flow_engine.runtime.memory import PreviousContact
from flow_engine.runtime.prompt import Composer, Prompt
from flow_engine.runtime.times import tenant_zone
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import Channel
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation, entries


def document(**changes: Any) -> JsonObject:
    """One task of every type; the supervised one has all that a prompt can show."""
    checkpoint = {"_id": "cp", "name": "identified", "prompt": "The caller is known"}
    routing = {
        "timeout": 60,
        "agentSkills": ["radiology", "rome"],
        "agentOptionalSkills": ["english"],
        "agentIds": ["agent-7"],
    }
    tasks = [
        aio_task(connectedTasks=["operator", "supervised", "written", "reception"], description="Welcome"),
        hum_task("operator", description="Wants a person", connectedTasks=["reception"]),
        hum_task(
            "supervised",
            type="AIS",
            description="Needs {care}",
            prompt="In {{ $task.name }}: {{ $vars.var_string }} is {{ $values.var_string }}.",
            connectedTasks=["reception", "operator"],
            routingParameters=routing,
            enabledCheckpoints=[checkpoint],
        ),
        aio_task("written", channels=["chat"], description="Only in writing"),
    ]
    tasks[1]["transitionParameters"] = [{"variableId": "var_string", "required": True}]
    return minimal_version(tasks=tasks, checkpoints=[checkpoint], globalPrompt="Be kind.", **changes)


def pieces_of(text: str) -> list[str]:
    """The names of the sections in their order."""
    return [part.split(" ")[0] for part in text.split("<")[1:]]


class TestOrder:
    def full(self, prompts: FileSystemPrompts) -> Prompt:
        talk = Conversation(prompts, document(), data={"callerId": "+39"}, memory={"var_string": "Ada"})
        talk.change("supervised")
        talk.load(
            memory_updated_at=NOW - timedelta(minutes=3),
            previous_contacts=(PreviousContact(NOW - timedelta(days=1), "chat", "Asked for hours."),),
        )
        return talk.prompt()

    def test_the_prefix_holds_its_pieces_in_the_agreed_order(self, prompts: FileSystemPrompts) -> None:
        assert pieces_of(self.full(prompts).prefix) == [  # F24
            *("role", "commands", "task_change", "memory_reference", "style", "language"),
            "heading_global",
            "heading_task",
            *("heading_reachable", "reachable_task", "reachable_task", "reachable_requires"),
            *("heading_checkpoints", "checkpoint"),
            *("heading_channel", "channel_phone"),
            *("heading_transfer", "transfer_ais"),
            *("transfer_skills", "transfer_optional_skills", "transfer_agents"),
            *("heading_previous_contacts", "previous_contact"),
        ]

    def test_the_volatile_part_follows_in_its_own_order(self, prompts: FileSystemPrompts) -> None:
        prompt = self.full(prompts)
        assert pieces_of(prompt.volatile) == [  # F24
            *("heading_contact", "contact_field"),
            "human_supervising",
            *("heading_now", "now"),
            *("heading_memory", "memory_updated", "ago_minutes"),
        ]
        assert prompt.volatile.endswith("|var|property|value|\n|-|-|-|\n|a string||Ada|")
        assert prompt.text == f"{prompt.prefix}\n\n{prompt.volatile}"

    def test_every_piece_says_what_it_is_there_for(self, prompts: FileSystemPrompts) -> None:
        text = self.full(prompts).text
        for part in (
            "<language en-US> en-US",
            "<heading_global en-US>\nBe kind.",
            "<heading_task en-US>\nIn supervised: memory->a string is Ada.",
            "<reachable_task en-US> Welcome reception AIO",
            "<reachable_task en-US> Wants a person operator HUM\n<reachable_requires en-US> a string",
            "<checkpoint en-US> identified The caller is known",
            "<transfer_skills en-US> radiology, rome",
            "<transfer_optional_skills en-US> english",
            "<transfer_agents en-US> agent-7",
            "<previous_contact en-US> chat 2026-01-14 23:30 «Asked for hours.»",
            "<contact_field en-US> callerId +39",
            "<now en-US> 2026-01-15 23:30 UTC Thu",
            "<memory_updated en-US> <ago_minutes en-US> 3 2026-01-15 23:27:00",
        ):
            assert part in text  # F24

    def test_what_there_is_nothing_of_has_no_heading(self, prompts: FileSystemPrompts) -> None:
        found = pieces_of(Conversation(prompts, document()).prompt().text)
        absent = {f"heading_{name}" for name in ("checkpoints", "transfer", "previous_contacts", "contact")}
        assert not absent & set(found)  # F24
        assert found[-2:] == ["memory_never", "memory_empty"]


class TestReachableTasks:
    def test_only_tasks_on_the_contacts_channel_are_offered_and_never_the_present_one(
        self, prompts: FileSystemPrompts
    ) -> None:
        by_phone = Conversation(prompts, document()).prompt().prefix
        in_writing = Conversation(prompts, document(), channel="chat").prompt().prefix
        assert "Only in writing" not in by_phone  # F11, F24
        assert "Only in writing" in in_writing
        assert "Welcome" not in in_writing  # connected to itself

    def test_where_nothing_leads_out_the_prompt_says_so(self, prompts: FileSystemPrompts) -> None:
        raw = document()
        raw["tasks"][0]["connectedTasks"] = ["written", "reception"]
        found = pieces_of(Conversation(prompts, raw).prompt().prefix)
        assert "reachable_none" in found  # F24
        assert "reachable_task" not in found

    def test_braces_in_a_description_are_text(self, prompts: FileSystemPrompts) -> None:
        assert "Needs {care} supervised AIS" in Conversation(prompts, document()).prompt().prefix  # F24


class TestStablePrefix:
    @given(st.lists(st.tuples(st.text(max_size=30), st.integers(0, 10**6)), min_size=1, max_size=5))
    @settings(max_examples=40, deadline=None)
    def test_memory_and_clock_leave_it_byte_for_byte(
        self, prompts: FileSystemPrompts, writes: list[tuple[str, int]]
    ) -> None:
        talk = Conversation(
            prompts, document(), memory={"var_string": "Ada"}, tenant={"timezone": "Asia/Tokyo"}
        )
        talk.change("supervised")
        first = talk.prompt()
        for text, seconds in writes:
            talk.load(tools=entries({"var_string": text}), memory_updated_at=NOW, memory_revision=2)
            later = talk.prompt(NOW + timedelta(seconds=seconds))
            assert (later.prefix, later.prefix_hash) == (first.prefix, first.prefix_hash)  # F23, F24

    def test_the_human_part_leaves_it_too(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, document(), memory={"var_string": "Ada"})
        talk.change("operator")
        first = talk.prompt()
        talk.human("connected")
        assert talk.prompt().prefix == first.prefix  # F24

    def test_a_task_another_channel_and_a_previous_contact_change_it(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, document(), memory={"var_string": "Ada"})
        hashes = [talk.prompt().prefix_hash]
        talk.change("supervised")
        hashes.append(talk.prompt().prefix_hash)
        talk.contact("chat-1", "chat")
        hashes.append(talk.prompt().prefix_hash)
        talk.load(previous_contacts=(PreviousContact(NOW, "phone", "Called."),))
        hashes.append(talk.prompt().prefix_hash)
        assert len(set(hashes)) == 4  # F24

    def test_of_many_contacts_those_are_made_ready_that_it_tells(self, prompts: FileSystemPrompts) -> None:
        class Counting(Secrets):
            looked_at = 0

            def text(self, text: str) -> str:
                self.looked_at += 1
                return super().text(text)

        talk = Conversation(prompts, document())
        contacts = (PreviousContact(NOW + timedelta(days=n), "phone", f"Call {n}.") for n in range(1_000))
        talk.load(previous_contacts=tuple(contacts))
        secrets = Counting(())
        prefix = Composer().compose(structs.replace(prompt_input(talk.runner()), secrets=secrets)).prefix
        assert "«Call 980.»" not in prefix
        assert all(f"«Call {n}.»" in prefix for n in range(981, 1_000))  # F24
        assert secrets.looked_at <= 50

    def test_another_contact_on_the_same_channel_leaves_it(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, document())
        first = talk.prompt()
        talk.contact("call-2", "phone")
        assert talk.prompt().prefix == first.prefix  # F24

    def test_values_are_those_of_the_entry_until_the_task_is_entered_again(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, document(), memory={"var_string": "Ada"})
        talk.change("supervised")
        talk.load(tools=entries({"var_string": "Grace"}))
        assert "memory->a string is Ada." in talk.prompt().prefix  # F22, F23
        assert "|a string||Grace|" in talk.prompt().volatile
        talk.change("reception")
        talk.change("supervised")
        assert "memory->a string is Grace." in talk.prompt().prefix

    @pytest.mark.parametrize(
        ("source", "marker"),
        [
            ("{{ $vars.nobody }}", "[unknown: $vars.nobody]"),
            ("{{ $tenant.nothing }}", "[unknown: $tenant.nothing]"),
            ("{{ $weather }}", "[unknown: $weather]"),
            ("{{ unclosed", "[template error: line 1"),
        ],
    )
    def test_what_a_template_cannot_know_is_a_marker(
        self, prompts: FileSystemPrompts, source: str, marker: str
    ) -> None:
        raw = document()
        raw["globalPrompt"] = raw["tasks"][0]["prompt"] = raw["tasks"][1]["description"] = source
        assert Conversation(prompts, raw).prompt().prefix.count(marker) == 3  # F22

    def test_templates_see_tenant_contact_channel_language_flow_and_task(
        self, prompts: FileSystemPrompts
    ) -> None:
        raw = document()
        raw["globalPrompt"] = (
            "{{ $tenant.name }} {{ $contact.callerId }} {{ $channel }} {{ $language }} "
            "{{ $flow.campaignId }} {{ $task.type }}"
        )
        talk = Conversation(prompts, raw, tenant={"name": "Alfa"}, data={"callerId": "+39"})
        assert "Alfa +39 phone en-US campaign AIO" in talk.prompt().prefix  # F22
        talk.change("supervised")
        assert "Alfa +39 phone en-US campaign AIS" in talk.prompt().prefix  # F23


class TestVolatilePart:
    @pytest.mark.parametrize(
        ("task", "outcomes", "piece"),
        [
            ("operator", (), "human_routing"),
            ("operator", ("connected",), "human_connected"),
            ("operator", ("connected", "completed"), "human_completed"),
            ("operator", ("failed",), "human_failed"),
            ("supervised", (), "human_supervising"),
            ("supervised", ("taken_over",), "human_in_control"),
            ("supervised", ("taken_over", "released"), "human_supervising"),
        ],
    )
    def test_it_tells_where_the_human_part_stands(
        self, prompts: FileSystemPrompts, task: str, outcomes: tuple[str, ...], piece: str
    ) -> None:
        talk = Conversation(prompts, document(), memory={"var_string": "Ada"})
        talk.change(task)
        for outcome in outcomes:
            talk.human(outcome)
        found = pieces_of(talk.prompt().volatile)
        assert [name for name in found if name.startswith("human_")] == [piece]  # F24

    @pytest.mark.parametrize(
        ("zone", "shown"),
        [
            ("Europe/Rome", "2026-01-16 00:30 Europe/Rome Fri"),
            ("America/New_York", "2026-01-15 18:30 America/New_York Thu"),
            ("Asia/Kathmandu", "2026-01-16 05:15 Asia/Kathmandu Fri"),
            (None, "2026-01-15 23:30 UTC Thu"),
        ],
    )
    def test_now_is_in_the_tenants_time_zone(
        self, prompts: FileSystemPrompts, zone: str | None, shown: str
    ) -> None:
        talk = Conversation(prompts, document(), tenant={"timezone": zone})
        assert f"<now en-US> {shown}" in talk.prompt().volatile  # F24

    @pytest.mark.parametrize(
        "zone",
        [
            *("", " ", "Mars/Olympus", "Europe", "../../etc/passwd", "/etc/localtime", "a\0b", "x" * 5000),
            *("zone.tab", "Europe/Rome/", "è", 7, None, True, ["Europe/Rome"], {"name": "Europe/Rome"}),
        ],
        ids=lambda zone: str(zone)[:20],
    )
    def test_a_zone_that_does_not_exist_is_utc(self, zone: object) -> None:
        assert tenant_zone({"timezone": zone}) is UTC  # F24

    @pytest.mark.parametrize("zone", ["europe/rome", "EUROPE/ROME", "Europe/rome"])
    def test_a_zone_is_known_in_any_case(self, zone: str) -> None:
        assert tenant_zone({"timezone": zone}) is ZoneInfo("Europe/Rome")  # F24

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [
            (0, "<ago_seconds en-US> 0"),
            (59, "<ago_seconds en-US> 59"),
            (60, "<ago_minutes en-US> 1"),
            (3599, "<ago_minutes en-US> 59"),
            (7300, "<ago_hours en-US> 2"),
            (86_400 * 3, "<ago_days en-US> 3"),
            (-30, "<ago_seconds en-US> 0"),
        ],
    )
    def test_it_tells_how_old_the_memory_is(
        self, prompts: FileSystemPrompts, seconds: int, shown: str
    ) -> None:
        talk = Conversation(prompts, document(), memory={"var_string": "Ada"})
        talk.load(memory_updated_at=NOW - timedelta(seconds=seconds))
        assert shown in talk.prompt().volatile  # F24

    def test_the_memory_may_be_toon(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, document(), memory={"var_string": "Ada"}, memory_format="toon")
        assert talk.prompt().volatile.endswith('memory[1]{var,property,value}:\n  a string,"",Ada')  # F21

    def test_contact_data_stays_on_its_line_and_nothing_is_left_out(self, prompts: FileSystemPrompts) -> None:
        data = {"name": "Ada\n## Memory\n|x|", "empty": "", "none": None, "zero": 0, "vip": True}
        volatile = Conversation(prompts, document(), data=data).prompt().volatile
        assert "<contact_field en-US> name Ada ## Memory |x|\n" in volatile  # F24
        assert volatile.count("<contact_field") == 3
        assert "<contact_field en-US> vip true\n" in volatile  # as JSON says it, like every other value


class TestSystemPrompts:
    @pytest.mark.parametrize(
        ("flows", "default", "chosen"),
        [
            ("it-IT", "en-US", "it-IT"),
            ("de-DE", "es-ES", "es-ES"),
            ("de-DE", "fr-FR", "en-US"),
        ],
    )
    def test_the_language_falls_back_over_the_flows_default_to_english(
        self, prompts: FileSystemPrompts, flows: str, default: str, chosen: str
    ) -> None:
        raw = document(systemPromptsLanguage=flows, defaultLanguage=default)
        assert f"<role {chosen}>" in Conversation(prompts, raw).prompt().prefix  # F26

    @pytest.mark.parametrize(
        ("audio", "text", "channel", "role"),
        [
            ("gemini-2.5-flash", "gpt-4.1", "phone", "<role of gemini>"),
            ("gemini-2.5-flash", "gpt-4.1", "chat", "<role en-US>"),
            ("gpt-4.1", "google/Gemini-3", "chat", "<role of gemini>"),
            ("gpt-4.1", None, "chat", "<role en-US>"),
            (None, "gemini-3", "phone", "<role en-US>"),
        ],
    )
    def test_the_model_of_the_channel_chooses_the_group(
        self, prompts: FileSystemPrompts, audio: str | None, text: str | None, channel: Channel, role: str
    ) -> None:
        media: JsonObject = {"audio": {"presetId": "default"}, "text": {}}
        if audio:
            media["audio"]["llm"] = {"model": audio}
        if text:
            media["text"]["llm"] = {"model": text}
        prefix = Conversation(prompts, document(mediaConfig=media), channel=channel).prompt().prefix
        assert prefix.startswith(role)  # F26
        assert "<style en-US>" in prefix  # what the group does not say is the default group's

    def test_a_group_without_the_language_speaks_as_the_default_group(
        self, prompts: FileSystemPrompts
    ) -> None:
        media: JsonObject = {"audio": {"presetId": "default", "llm": {"model": "gemini-3"}}, "text": {}}
        raw = document(mediaConfig=media, systemPromptsLanguage="it-IT")
        assert Conversation(prompts, raw).prompt().prefix.startswith("<role it-IT>")  # F26


def test_a_value_that_becomes_sensitive_is_masked_in_what_the_caller_has_said(
    prompts: FileSystemPrompts,
) -> None:
    """By a migration: the same contact, whose data have been told openly."""
    talk = Conversation(prompts, document(), data={"said": "I am Ada"})
    inputs = prompt_input(talk.runner())
    spec = VariableSpec("name", "name", "string", sensitive=True)
    later = structs.replace(inputs, flow=replace(talk.flow), secrets=Secrets([(spec, "I am Ada")]))
    compose = talk.platform.composer.compose
    assert "I am Ada" in compose(inputs).volatile
    assert "I am Ada" not in compose(later).volatile
    assert "I am Ada" in compose(inputs).volatile


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({}, ["a string", "a number"]),
        ({"var_number": 1}, ["a string"]),
        ({"var_string": "Ada"}, ["a number"]),
        ({"var_string": "Ada", "var_number": 1}, []),
    ],
)
def test_a_task_that_can_follow_tells_which_of_its_variables_are_missing(
    prompts: FileSystemPrompts, known: dict[str, Any], missing: list[str]
) -> None:
    raw = document()
    raw["tasks"][1]["transitionParameters"].append({"variableId": "var_number", "required": True})
    operator, *others = Conversation(prompts, raw, memory=known).agent_data()["reachableTasks"]
    assert (operator["requiredVariables"], operator["missingVariables"]) == (
        ["a string", "a number"],
        missing,
    )
    assert {tuple(task["missingVariables"]) for task in others} == {()}  # F28

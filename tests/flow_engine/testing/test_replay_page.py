"""The report of a replay for people: each finding has its words, no text of a flow is markup."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.testing.replay_page import LINES_SHOWN, ROWS_SHOWN, percent, replay_lines, replay_page
from flow_engine.use_cases.replays import (
    ForkReport,
    NewRefusal,
    PathStep,
    PromptChange,
    ReplayReply,
    ReplayRow,
    ReplaySummary,
    SuggestedMigration,
)

NOTHING: dict[str, Any] = {
    "path": "same",
    "firstFork": None,
    "newRefusals": [],
    "variablesGone": [],
    "promptsDiffer": [],
    "checkpointsLost": [],
    "notReplayed": [],
    "notReproduced": [],
}
"""What a row has of a conversation that is replayed as it was."""


def row(conversation: str = "conv-1", **changes: Any) -> ReplayRow:
    return ReplayRow(conversationId=conversation, **{**NOTHING, **changes})


def step(task: str | None, **changes: Any) -> PathStep:
    return PathStep(**{"task": task, "taskStatus": None, "status": "active", "code": None, **changes})


def report(rows: Sequence[ReplayRow], migrations: Sequence[SuggestedMigration] = ()) -> ReplayReply:
    other = sum(each["path"] == "other" for each in rows)
    summary = ReplaySummary(
        conversations=len(rows),
        samePath=len(rows) - other,
        otherPath=other,
        newRefusals=sum(bool(each["newRefusals"]) for each in rows),
        variablesGone=sum(bool(each["variablesGone"]) for each in rows),
        promptsDiffer=sum(bool(each["promptsDiffer"]) for each in rows),
    )
    return ReplayReply(summary=summary, conversations=rows, checkpointsLost=0, migrations=migrations)


FORK = ForkReport(
    seq=3,
    recorded=step("Visit", taskStatus="routing"),
    replayed=step(None, status="closed", code="task_not_connected"),
)
EVERYTHING = row(
    "conv-7",
    path="other",
    firstFork=FORK,
    newRefusals=[NewRefusal(seq=3, task="Visit", code="missing_variables")],
    variablesGone=["var_string", "var_date"],
    promptsDiffer=[1, 4],
    checkpointsLost=["greeted"],
    notReplayed=[5, 6],
    notReproduced=[2],
)
MOVED = SuggestedMigration(
    fromVersionId="version-1", conversations=2, mapping={"visit": "exam"}, unmapped=["island"]
)


class TestLines:
    def test_each_finding_of_a_conversation_is_told_on_its_line(self) -> None:  # journal: replay
        sums, share, *rest = replay_lines(report([EVERYTHING, row()], [MOVED]))
        assert sums == (
            "2 conversations, 1 on the same path, 1 on another path, 1 with new refusals, "
            "1 with variables gone, 1 with other prompts"
        )
        assert share == "50 % take another path"
        assert rest == [
            "  conv-7: other path at 3: Visit / routing → nothing / task_not_connected / closed; "
            "refused at 3: Visit (missing_variables); variables gone: var_string, var_date; "
            "other prompts at: 1, 4; checkpoints lost: greeted; not replayed: 5, 6; "
            "not reproduced on its own version: 2",
            "  to migrate from version-1, map visit to exam",
            "  nothing is like island of version-1",
        ]

    def test_where_nothing_differs_only_the_sums_are_told(self) -> None:
        assert len(list(replay_lines(report([row("a"), row("b")])))) == 2

    def test_a_single_conversation_is_counted_as_one(self) -> None:
        one = report([EVERYTHING])
        assert next(replay_lines(one)).startswith("1 conversation, 0 on the same path, ")
        text = Markup(replay_page(one, [], "draft-1")).text
        assert "100 % of 1 recorded conversation takes another path." in text
        assert "1 conversation 0 on the same path" in text

    def test_of_no_conversation_none_takes_another_path(self) -> None:
        assert percent(report([])["summary"]) == 0.0
        assert percent(report([EVERYTHING])["summary"]) == 100.0


class Markup(HTMLParser):
    """What a browser would make of a page: its elements, and the text that is shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.shown: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.shown).split())


class TestPage:
    def test_every_finding_stands_in_the_row_of_its_conversation(self) -> None:  # journal: replay
        text = Markup(replay_page(report([EVERYTHING, row()], [MOVED]), [], "draft-1")).text
        for said in (
            "50 % of 2 recorded conversations take another path.",
            "at 3: Visit / routing → nothing / task_not_connected / closed",
            "at 3: Visit missing_variables",
            "var_string, var_date",
            "checkpoints lost: greeted",
            "not replayed: 5, 6",
            "not reproduced: 2",
            "to migrate from version-1, map visit to exam",
            "nothing is like island of version-1",
        ):
            assert said in text
        assert "conv-1" not in text, "what is as it was is only counted"

    def test_where_nothing_differs_it_says_so(self) -> None:
        text = Markup(replay_page(report([row()]), [], "draft-1")).text
        assert "None: every one takes its path with the same prompts." in text
        assert "To migrate" not in text

    def test_of_very_many_the_first_are_shown_and_all_are_counted(self) -> None:
        rows = [row(f"conv-{n:05d}", notReplayed=[1]) for n in range(ROWS_SHOWN + 5)]
        page = Markup(replay_page(report(rows), [], "draft-1"))
        assert f"The first {ROWS_SHOWN} of {ROWS_SHOWN + 5}." in page.text
        assert page.elements.count("tr") == ROWS_SHOWN + 1
        assert f"conv-{ROWS_SHOWN - 1:05d}" in page.text
        assert f"conv-{ROWS_SHOWN:05d}" not in page.text

    def test_prompts_that_most_conversations_share_come_first_and_long_ones_are_cut(self) -> None:
        long = "\n".join(f"line {n}" for n in range(LINES_SHOWN + 10))
        changes = [
            PromptChange("rare", "conv-1", 2, "before", "after"),
            PromptChange("common", "conv-2", 3, "", long, conversations=9),
        ]
        text = Markup(replay_page(report([row(promptsDiffer=[2])]), changes, "draft-1")).text
        assert text.index("common: in 9 conversation(s), first in conv-2 at 3") < text.index("rare: in 1")
        assert "-before" in text
        assert "+after" in text
        assert "more lines" in text
        assert f"line {LINES_SHOWN + 9}" not in text


TEXTS = st.text(alphabet=st.sampled_from("<>&\"'a;/ é\u2028"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=8, max_size=8))
def test_whatever_a_flow_calls_its_parts_is_text_and_no_markup(texts: list[str]) -> None:
    def page(names: list[str]) -> Markup:
        conversation, task, code, variable, checkpoint, version, recorded, replayed = names
        odd = row(
            conversation,
            path="other",
            firstFork=ForkReport(seq=1, recorded=step(task), replayed=step(None, code=code)),
            newRefusals=[NewRefusal(seq=1, task=task, code=code)],
            variablesGone=[variable],
            checkpointsLost=[checkpoint],
        )
        moved = SuggestedMigration(fromVersionId=version, conversations=1, mapping={task: task}, unmapped=[])
        change = PromptChange(task, conversation, 1, recorded + "-", replayed + "+")
        return Markup(replay_page(report([odd], [moved]), [change], version))

    plain = page([f"x{n}" for n in range(8)])
    assert set(page(texts).elements) == set(plain.elements)

"""What a session remembers, and what of a model's text is shown."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.models.thoughts import ThoughtFilter, without_thoughts
from channels.chat.state import (
    MOST_CHARS,
    MOST_TURNS,
    Aside,
    FlowRun,
    OpenQuestion,
    SessionState,
    Turn,
    item_of,
    take,
)
from channels.chat.wording import breaks_out, phrase, question, refusal
from flow_engine.errors import CallTheOperator


def user(content: str, message_id: str = "m") -> Turn:
    return Turn(role="user", content=content, id=message_id)


def test_a_session_is_read_as_it_was_written() -> None:  # C14
    state = SessionState(user="u", language="it-IT", active_agent="a", last_intent="b", answering="m-2")
    state.add(user("Ciao"))
    state.question = OpenQuestion(question="Which?", offered=("a", "b"), about="Ciao")
    state.flow = FlowRun(agent="a", flow_id="f", conversation="c", contact="k", task="t")
    assert SessionState.read(state.written()) == state
    for text in (b"{", b"[]", b'{"history": []}', b'{"user": "u", "history": [{"role": "system"}]}'):
        with pytest.raises(CallTheOperator, match="session_unreadable"):
            SessionState.read(text)


def test_the_oldest_turns_go_first_and_the_newest_always_stays() -> None:  # C14
    state = SessionState(user="u")
    for number in range(MOST_TURNS + 3):
        state.add(user(str(number)))
    assert [turn.content for turn in state.history] == [str(n) for n in range(3, MOST_TURNS + 3)]
    state.add(user("x" * (MOST_CHARS + 1)))
    assert [len(turn.content) for turn in state.history] == [MOST_CHARS + 1]
    state.add(user("y" * 10))
    assert [turn.content for turn in state.history] == ["y" * 10]


def test_a_model_reads_turns_that_alternate() -> None:  # C14
    state = SessionState(user="u")
    for role, content in (
        ("user", "one"),
        ("user", "two"),
        ("assistant", ""),
        ("user", "three"),
        ("assistant", "A"),
        ("assistant", "B"),
        ("user", "four"),
    ):
        state.add(Turn(role=role, content=content, id="m"))  # type: ignore[arg-type]
    assert [(message.role, message.content) for message in state.messages()] == [
        ("user", "one\ntwo\nthree"),
        ("assistant", "A\nB"),
        ("user", "four"),
    ]


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "thi", "nk>", "/", "a b", "\n", " x"]), max_size=12
)


@settings(max_examples=80, deadline=None)
@given(pieces=PIECES, cuts=st.lists(st.integers(0, 60), max_size=8), holds=st.booleans())
def test_thoughts_are_taken_out_wherever_the_stream_is_cut(
    pieces: list[str], cuts: list[int], holds: bool
) -> None:  # C3
    text, shown, thoughts = "".join(pieces), "", ThoughtFilter(holds=holds)
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in pairwise(ends):
        shown += thoughts.feed(text[begin:end])
    shown += thoughts.finish()
    whole = ThoughtFilter(holds=holds)
    assert shown == whole.feed(text) + whole.finish()
    if holds or not whole.is_unopened:
        assert shown == without_thoughts(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<think>no</think>\n\nYes.", "Yes."),
        ("Yes.<think>no</think> And more.", "Yes. And more."),
        ("<think>never ends", ""),
        ("a < b and <th", "a < b and <th"),
        ("</think>Yes.", "Yes."),
        ("They want rain.\n</think>\n\nYes.", "Yes."),
        ("<think>a</think><think>b</think>Yes.", "Yes."),
    ],
)
def test_what_a_model_thinks_is_no_part_of_its_text(text: str, shown: str) -> None:  # C3
    assert without_thoughts(text) == shown


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        ("Something else, please", True),
        ("LASCIA PERDERE", True),
        ("qualcos’altro", True),
        ("Otra cosa", True),
        ("no, the large one", False),
        ("yes", False),
    ],
)
def test_a_user_leaves_in_so_many_words(text: str, leaves: bool) -> None:  # C9
    assert breaks_out(text) is leaves


def test_the_chat_speaks_the_sessions_language_or_english() -> None:  # C10
    for language, words in (
        ("it-IT", "Qui non"),
        ("ES", "Aquí"),
        ("de", "I have nobody"),
        (None, "I have nobody"),
    ):
        assert refusal(["Sells tickets."], language).startswith(words)
        assert "Sells tickets." in refusal(["Sells tickets."], language)
    assert question([], "it") == phrase("or", "it")
    assert question(["One."], "en").splitlines()[1:] == ["1. One."]
    assert question(["One.", "Two."], "en").splitlines()[1:] == ["1. One.", "2. Two."]
    assert question(["One."], "en").splitlines()[0] != question(["One.", "Two."], "en").splitlines()[0]
    assert "\n" not in refusal([], "en")


def test_what_happens_beside_answers_is_kept_and_another_release_takes_its_part_of_it() -> None:  # C14, F25
    flow = FlowRun(agent="a", flow_id="f", conversation="c", contact="k", task="t", status="routing")
    moved = flow.model_copy(update={"status": "completed"})
    said = Turn(role="assistant", content="Hola", id="human-1", agent="Ann")
    state = SessionState(user="u", flow=flow)
    for aside in (Aside(moved, "/human_task_completed"), Aside(said=said), Aside(moved, None)):
        item = item_of(aside)
        # Of the release before, which knows the task alone, and takes another kind for a user's message.
        assert item["kind"] == "task"
        assert item["contact"] == ("k" if aside.flow else "")
        take(state, orjson.loads(orjson.dumps(item)))
    assert state.flow is not None
    assert (state.flow.status, state.flow.commands) == ("completed", ("/human_task_completed",))
    assert state.history == [said]
    take(state, {"kind": "task", "contact": "k", "task": "u", "status": ""})  # as that release writes it
    assert (state.flow.task, state.flow.status, state.history) == ("u", None, [said])
    take(state, item_of(Aside(moved.model_copy(update={"contact": "another"}), "/human_task_completed")))
    assert (state.flow.task, len(state.flow.commands)) == ("u", 1)

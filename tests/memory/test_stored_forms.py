"""Names of keys and forms of what is kept, as a release beside this one reads them (F13, F14, F16)."""

from __future__ import annotations

import fnmatch
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.idempotency import FinalReply, IdempotencyKey, KeptReply
from flow_engine.ports.dialogue import ConversationRef, DialogueTurn, Fork, encoded_id
from flow_engine.ports.jobs import Job, JobKind
from flow_engine.runtime.mining_state import (
    Conclusion,
    MiningState,
    Provenance,
    ReachedCheckpoint,
    decode_mining,
    encode_mining,
)
from flow_engine.runtime.storage import FORMER_TURNS_BYTES, FormerConversation, LoadedConversation
from memory.codec import (
    decode_former,
    decode_instant,
    decode_reply,
    decode_turn,
    encode_former,
    encode_instant,
    encode_reply_head,
    encode_turn,
)
from memory.keys import (
    ConversationKeys,
    definition_key,
    due_score,
    event_shares_key,
    index_key,
    job_owner,
    model_calls_key,
    model_shares_key,
    snapshots_of,
)
from memory.listing import encode_head, encode_origin
from memory.streams import buried_key
from tests.memory.conversation_samples import T0, head, session, turn

CONVERSATION = ConversationRef("acme", "conv 1")
ids = st.text(min_size=1, max_size=12)


class TestKeys:
    def test_all_keys_of_a_conversation_have_its_tag(self) -> None:
        tag = "{acme:conv%201}"
        keys = ConversationKeys.of(CONVERSATION)
        assert keys.named == {  # F16
            "snapshot": f"{tag}::snapshot",
            "tenant": f"{tag}::tenant",
            "mined": f"{tag}::vars::convMiner",
            "tools": f"{tag}::vars::tools",
            "previous": f"{tag}::previousContacts",
            "utterances": f"{tag}::utterances",
            "messages": f"{tag}::messages",
            "journal": f"{tag}::journal",
            "segments": f"{tag}::journal::segments",
            "outbox": f"{tag}::outbox",
        }
        assert keys.state == tuple(keys.named.values())
        assert [keys.webhook_queue, keys.confirmation, keys.notices] == [
            f"{tag}::outbox::webhook",
            f"{tag}::confirmation",
            f"{tag}::memory",
        ]

    @pytest.mark.parametrize(
        ("key", "name"), [("k", "k"), ("a/b", "a%2Fb"), ("è", "%C3%A8"), (None, "-"), ("", "-")]
    )
    def test_a_kept_reply_is_named_by_its_key(self, key: str | None, name: str) -> None:
        keys = ConversationKeys.of(CONVERSATION)
        assert keys.reply(key) == f"{{acme:conv%201}}::reply::{name}"  # F15
        assert fnmatch.fnmatchcase(keys.reply(key), keys.replies)

    @settings(max_examples=30)
    @given(ids, ids, ids, ids)
    def test_two_conversations_share_no_key(self, tenant: str, one: str, other_tenant: str, two: str) -> None:
        left, right = ConversationRef(tenant, one), ConversationRef(other_tenant, two)
        if left != right:  # F16, F43
            assert not {*ConversationKeys.of(left).state} & {*ConversationKeys.of(right).state}

    @settings(max_examples=30)
    @given(ids, ids)
    def test_no_id_can_forge_a_separator_or_end_the_tag(self, tenant: str, conversation: str) -> None:
        tag = ConversationKeys.of(ConversationRef(tenant, conversation)).tag
        assert (tag.count("{"), tag.count("}"), tag.count(":")) == (1, 1, 1)  # F16
        assert tag.isascii()
        assert not {*tag} & {*"*?[]^\\"}  # a glob as it is

    @pytest.mark.parametrize(
        ("key", "name"),
        [
            (index_key("a c"), "{a%20c:conversations}::index"),
            (definition_key("acme", "abc"), "{acme:definition:abc}"),
            (model_calls_key(7), "{flow-engine}:model-calls:7"),
            (model_shares_key(7), "{flow-engine}:model-calls:7::tenants"),
            (model_calls_key(7, "mail"), "{flow-engine}:mail:7"),
            (event_shares_key(7), "{flow-engine}:events::shares:7"),
            (job_owner(CONVERSATION), ":acme:conv%201:"),
            (buried_key("cti"), "{cti}::buried"),
            (buried_key("{x}:cti"), "{x}:cti::buried"),
        ],
    )
    def test_every_other_key_has_its_name(self, key: str, name: str) -> None:
        assert key == name  # F16, F40

    def test_snapshots_of_a_tenant_are_found_by_a_glob(self) -> None:
        start, glob, end = snapshots_of("a-c")
        assert (start, end) == ("{a-c:", "}::snapshot")
        assert glob == "{a-c:*}::snapshot"

    def test_what_is_due_is_scored_by_its_millisecond(self) -> None:
        assert due_score(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=1999)) == 1767225600001

    @pytest.mark.parametrize(
        ("id", "encoded"), [("a", "a"), ("a:b/{c}", "a%3Ab%2F%7Bc%7D"), ("日", "%E6%97%A5")]
    )
    def test_ids_are_percent_encoded(self, id: str, encoded: str) -> None:
        assert encoded_id(id) == encoded  # F16


class TestJobs:
    @settings(max_examples=30)
    @given(st.sampled_from(get_args(JobKind)), ids, ids, st.text(max_size=12))
    def test_a_job_is_read_back_from_its_name(
        self, kind: Any, tenant: str, conversation: str, subject: str
    ) -> None:
        job = Job(kind, ConversationRef(tenant, conversation), subject)
        assert Job.named(job.name) == job  # F41
        assert job_owner(job.conversation) in job.name

    def test_its_name_has_four_parts(self) -> None:
        assert Job("conclude", CONVERSATION, "call:1").name == "conclude:acme:conv%201:call%3A1"  # F41

    @pytest.mark.parametrize("name", ["", "mine", "mine:t:c", "mine:t:c:s:more", "sleep:t:c:s"])
    def test_any_other_name_is_none(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"unpack|no kind of job"):
            Job.named(name)


class TestTurns:
    @settings(max_examples=30)
    @given(
        st.builds(
            DialogueTurn,
            *[st.text(max_size=9)],
            st.datetimes(timezones=st.just(UTC)),
            *[st.text(max_size=9)] * 6,
        )
    )
    def test_one_is_read_back(self, stored: DialogueTurn) -> None:
        assert decode_turn(encode_turn(stored)) == stored  # F33

    def test_it_is_json_by_the_names_of_its_fields(self) -> None:
        assert orjson.loads(encode_turn(turn("m1"))) == {
            "message_id": "m1",
            "ts": "2026-03-01T12:00:00.123456+00:00",
            "type": "message",
            "src": "user",
            "body": "Hi",
            "contact_id": "anna",
            "task_name": "red",
            "language": "en-US",
        }

    @pytest.mark.parametrize("stored", [b"", b"{}", b"[]", b'{"message_id": 7}', b"\xff"])
    def test_what_is_none_is_an_operators_business(self, stored: bytes) -> None:
        with pytest.raises(CallTheOperator) as raised:
            decode_turn(stored)
        assert raised.value.code == "utterance_unreadable"

    @settings(max_examples=30)
    @given(st.datetimes(timezones=st.just(UTC)))
    def test_an_instant_is_read_back_to_the_microsecond(self, instant: datetime) -> None:
        assert decode_instant(encode_instant(instant).encode()) == instant


class TestKeptReplies:
    @pytest.mark.parametrize("body", [b"", b"{}", b'{"a":\n1}', bytes(range(256))])
    def test_a_reply_is_kept_byte_for_byte(self, body: bytes) -> None:
        kept = decode_reply(encode_reply_head("abc", 201) + body)
        assert kept == KeptReply("abc", 201, body)  # F15
        assert kept.replay(IdempotencyKey("k", "abc")) == FinalReply(201, body, replayed=True)

    def test_under_its_key_another_request_is_refused(self) -> None:
        with pytest.raises(CorrectTheInput) as raised:
            KeptReply("abc", 201, b"{}").replay(IdempotencyKey("k", "def"))
        assert raised.value.code == "idempotency_key_reused"  # F15
        assert raised.value.detail == (
            "key 'k' was sent with another request less than 24 hours ago: use a new key for a new request"
        )


class TestMining:
    WHOLE = MiningState(
        mined_through="anna/m2",
        failed_turn="anna/m3",
        provenance={"v": Provenance(source="model", message_id="m2", at=T0, superseded={"a": 1})},
        dropped={"date_invalid": 2},
        task_id="red",
        task_turns=3,
        attempts={"v": 1},
        ready_turns={"blue": 2},
        checkpoints={"cp": ReachedCheckpoint(at=T0, message_id="m1", reason="said so")},
        conclusions={"anna": Conclusion(reason_of_contact="r", result=None, why="w")},
        missed_reported=True,
    )

    @pytest.mark.parametrize("state", [MiningState(), WHOLE, MiningState(task_turns=1)])
    def test_a_state_is_read_back(self, state: MiningState) -> None:
        assert decode_mining(encode_mining(state)) == state  # F37

    def test_what_is_as_at_the_start_is_not_written(self) -> None:
        assert encode_mining(MiningState()) == b"{}"
        assert orjson.loads(encode_mining(MiningState(task_id="red", task_turns=1))) == {
            "taskId": "red",
            "taskTurns": 1,
        }

    def test_what_a_newer_release_has_added_is_passed_over(self) -> None:
        assert decode_mining(b'{"taskTurns":2,"addedLater":{"a":1}}') == MiningState(task_turns=2)

    @pytest.mark.parametrize(
        "stored", [b"", b"[]", b'{"taskTurns":"two"}', b'{"checkpoints":{"a":1}}', b"\xff"]
    )
    def test_what_is_none_is_an_operators_business(self, stored: bytes) -> None:
        with pytest.raises(CallTheOperator) as raised:
            decode_mining(stored)
        assert raised.value.code == "mining_unreadable"


class TestFormerConversations:
    def former(self, *turns: DialogueTurn, **loaded: Any) -> FormerConversation:
        return FormerConversation.of(session(CONVERSATION), LoadedConversation(turns=turns, **loaded))

    def test_one_is_read_back(self) -> None:
        kept = self.former(turn("m1"), turn("m2"), mining=TestMining.WHOLE)
        assert decode_former(encode_former(kept)) == kept  # F39, A6
        assert kept.name == str(int(T0.timestamp() * 1000))

    def test_caller_data_and_texts_are_left_behind(self) -> None:
        kept = self.former(turn("m1"))
        assert kept.session.contacts["anna"].data == {}  # F46
        assert (kept.session.task.global_prompt, kept.session.task.prompt) == ("", "")
        assert kept.session.active_contact_id == "anna"
        assert kept.session.entered == {"red": 1}

    @pytest.mark.parametrize(
        ("sizes", "kept"),
        [
            ((10, 20), 2),
            ((FORMER_TURNS_BYTES,), 1),
            ((FORMER_TURNS_BYTES + 1,), 0),
            ((10, FORMER_TURNS_BYTES), 1),
            ((FORMER_TURNS_BYTES, 10), 1),
            ((1, FORMER_TURNS_BYTES - 1), 2),
        ],
    )
    def test_the_newest_messages_are_kept_within_their_bound(self, sizes: tuple[int, ...], kept: int) -> None:
        turns = [turn(f"m{number}", "x" * size) for number, size in enumerate(sizes)]
        found = self.former(*turns)
        assert list(found.turns) == turns[len(turns) - kept :]  # A16
        assert found.turn_bytes <= FORMER_TURNS_BYTES

    def test_what_others_hold_already_counts(self) -> None:
        other = self.former(turn("m1", "x" * (FORMER_TURNS_BYTES - 5)))
        assert [t.message_id for t in self.former(turn("m2", "12345"), former=(other,)).turns] == [
            "m2"
        ]  # A16
        assert self.former(turn("m2", "123456"), former=(other,)).turns == ()


class TestListedHeads:
    def test_a_head_is_in_two_fields(self) -> None:
        whole = structs.replace(head(session(CONVERSATION)), tag="production")
        assert orjson.loads(encode_head(whole)) == {
            "flow_id": "flow",
            "version_id": "version",
            "task_id": "red",
            "task": "red",
            "status": "active",
            "channel": "chat",
            "started_at": "2026-03-01T12:00:00.123456+00:00",
            "contacts": ["anna"],
        }
        assert orjson.loads(encode_origin(whole)) == {"tag": "production", "forked_from": None}

    def test_its_origin_is_that_of_the_start(self) -> None:
        forked = structs.replace(head(session(CONVERSATION)), forked_from=Fork("conv-0", 7))
        assert orjson.loads(encode_origin(forked)) == {
            "tag": None,
            "forked_from": {"conversation_id": "conv-0", "seq": 7},
        }

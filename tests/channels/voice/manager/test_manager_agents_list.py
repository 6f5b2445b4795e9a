"""The list of agents: what of it can be used, and what is said of the rest."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from typer.testing import CliRunner

from adapters.outbound.fake import ScriptedOutbound
from channels.voice.manager.agents_list import (
    AgentsList,
    Listed,
    ListUnavailable,
    Refused,
    fetch_agents,
    read_agents,
)
from channels.voice.sip_bridge.account import Account
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply
from service.cli import app

URL = "https://business.example/api/sip/agents"
SIP = {"sipBridge": True, "sipDomain": "sip.example", "sipUsername": "chez-a", "sipPassword": "s3cret"}


def read(*entries: object) -> AgentsList:
    return read_agents(orjson.dumps(entries))


def refused(*entries: object) -> list[tuple[str | None, list[tuple[str, str]]]]:
    return [
        (each.id, [(problem.pointer, problem.code) for problem in each.problems])
        for each in read(*entries).refused
    ]


@pytest.mark.parametrize("wrapped", ["{}", '{{"agents": {}}}', '{{"restaurants": {}, "total": 1}}'])
def test_a_bare_list_and_a_wrapped_one_are_the_same(wrapped: str) -> None:  # V13
    entries = '[{"id": "a", "name": "Chez A"}]'
    assert read_agents(wrapped.format(entries).encode()).agents == (Listed("a", "Chez A", "restaurant"),)


def test_both_spellings_of_an_entry_are_read_and_the_rest_is_ignored() -> None:  # V13
    assert read(
        {"restaurantId": "a-1", "restaurantName": 'Chez "A"', "sipBridge": False, "phone": "+33"},
        {"id": "b_2.x", "name": "B", "type": "medical", **SIP},
        {"id": "c", "name": "C", "type": None, "sipBridge": None, "sipPassword": "unused"},
    ) == AgentsList(
        (
            Listed("a-1", 'Chez "A"', "restaurant"),
            Listed("b_2.x", "B", "medical", Account("sip.example", "chez-a", SecretStr("s3cret"))),
            Listed("c", "C", "restaurant"),
        ),
        (),
    )


def test_every_problem_of_every_bad_entry_is_told_and_the_good_ones_are_kept() -> None:  # V13
    fetched = read(
        {"id": "good", "name": "Good"},
        {"id": 7, "name": "", "type": "../x", "sipBridge": "yes"},
        {"id": "b", **SIP, "sipPassword": None, "sipDomain": "a\nb"},
        "nothing",
    )
    assert [agent.id for agent in fetched.agents] == ["good"]
    assert [(each.id, [(p.pointer, p.code) for p in each.problems]) for each in fetched.refused] == [
        (
            None,
            [
                ("/1/id", "wrong_type"),
                ("/1/name", "not_accepted"),
                ("/1/type", "not_accepted"),
                ("/1/sipBridge", "wrong_type"),
            ],
        ),
        (
            "b",
            [
                ("/2/name", "missing_property"),
                ("/2/sipDomain", "not_accepted"),
                ("/2/sipPassword", "missing_property"),
            ],
        ),
        (None, [("/3", "wrong_type")]),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("sipDomain", each)
            for each in ("sip.example:0", "sip.example:99999", "sip.example:x", "sip.example:")
        ),
        *(
            ("sipDomain", each)
            for each in ("sip:desk@sip.example", "a b", "[::1]", "a..b", "x" * 64, "é.example")
        ),
        *(("sipUsername", each) for each in ("a b", "desk@sip.example", 'de"sk', "<desk>", "é")),
    ],
)
def test_a_sip_account_that_cannot_work_is_refused(  # V13
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = read({"id": "a", "name": "A", **SIP, name: value})
    assert [(p.pointer, p.code) for each in fetched.refused for p in each.problems] == [
        (f"/0/{name}", "not_accepted")
    ]
    account = {
        "SIP_DOMAIN": "sip.example:5080",
        "SIP_USERNAME": "desk",
        "SIP_PASSWORD": "s",
        "AGENT_PORT": "9",
    }
    variable = {"sipDomain": "SIP_DOMAIN", "sipUsername": "SIP_USERNAME"}[name]
    for each, text in {**account, variable: value}.items():
        monkeypatch.setenv(each, text)
    result = CliRunner().invoke(app, ["voice", "sip-bridge"])
    assert (result.exit_code, variable in result.stderr) == (2, True)


def test_a_list_is_complete_when_every_entry_of_it_says_whom_it_is_about() -> None:  # V13
    assert read({"id": "a", "name": "A"}, {"id": "b"}).complete
    assert not read({"id": "a", "name": "A"}, {"name": "B"}).complete


@pytest.mark.parametrize(
    "agent_id",
    ["..", ".", "", ".a", "../a", "a/b", "a\\b", "a b", "é", "a\0", "a\n", "-a", "--config", "x" * 101, "~"],
)
def test_an_id_that_is_no_safe_file_name_is_refused(agent_id: str) -> None:  # V13
    ((_, problems),) = refused({"id": agent_id, "name": "A"})
    assert {pointer for pointer, _ in problems} == {"/0/id"}


@pytest.mark.parametrize("again", ["a", "A"])
def test_an_id_comes_once_in_either_case(again: str) -> None:  # V13
    """Two that differ in case only are one file where file names are compared so."""
    fetched = read({"id": "a", "name": "first"}, {"id": again, "name": "second"})
    assert [agent.name for agent in fetched.agents] == ["first"]
    assert refused({"id": "a", "name": "first"}, {"id": again, "name": "second"}) == [
        (again, [("/1/id", "duplicate_id")])
    ]


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ({}, True),
        ({"sipDomain": "SIP.example:5060", "sipPassword": "another"}, True),
        ({"sipDomain": "sip.example:5080"}, False),
        ({"sipUsername": "Chez-A"}, False),
        ({"sipBridge": False}, False),
    ],
)
def test_a_sip_account_rings_at_one_agent(other: dict[str, object], is_refused: bool) -> None:  # V13
    told = refused({"id": "a", "name": "A", **SIP}, {"id": "b", "name": "B", **SIP, **other})
    assert told == ([("b", [("/1/sipUsername", "duplicate_account")])] if is_refused else [])


def test_a_name_cannot_become_a_template() -> None:  # V13
    assert refused({"id": "a", "name": "Chez {{ctx.caller_phone}}"}) == [("a", [("/0/name", "not_accepted")])]
    assert not refused({"id": "a", "name": 'Chez ${API_URL} "{A}"'})


@pytest.mark.parametrize(
    "body", [b"", b"null", b"{}", b'"agents"', b'{"agents": {}}', b"[", b'{"agents": null}', b"\xff"]
)
def test_what_is_no_list_is_no_empty_list(body: bytes) -> None:  # V13
    with pytest.raises(ListUnavailable):
        read_agents(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
FIELDS = ("id", "restaurantId", "name", "type", "sipBridge", "sipDomain", "sipUsername", "sipPassword")


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON | st.just("ok"), max_size=8), max_size=5))
def test_any_list_is_read_and_every_entry_is_either_used_or_refused_with_a_reason(
    entries: list[object],
) -> None:  # V13
    fetched = read(*entries)
    assert len(fetched.agents) + len(fetched.refused) == len(entries)
    assert all(each.problems for each in fetched.refused)
    assert len({agent.id.casefold() for agent in fetched.agents}) == len(fetched.agents)


@given(st.text(min_size=12, max_size=30).filter(lambda text: "'" not in text))
def test_no_problem_quotes_a_password(password: str) -> None:  # V13
    fetched = read({"id": "a", **SIP, "sipPassword": password})
    assert fetched.refused, "an entry without a name is refused"
    assert password not in repr(fetched)


class TestFetch:
    pytestmark = pytest.mark.anyio

    async def test_the_token_goes_in_a_header(self) -> None:  # V13
        outbound = ScriptedOutbound({URL: [OutboundReply(200, b"[]")]})
        await fetch_agents(outbound, "https://business.example", SecretStr("t0ken"))
        await fetch_agents(outbound, "https://business.example", None)
        first, second = outbound.calls
        assert (first.method, first.headers["Authorization"]) == ("GET", "Bearer t0ken")
        assert "Authorization" not in second.headers

    @pytest.mark.parametrize(
        "answer",
        [
            OutboundReply(401, b"[]"),
            OutboundReply(500, b"s3cret"),
            OutboundReply(200, b'{"error": "s3cret"}'),
            OutboundFailed("'business.example' did not answer within 20 s"),
            OutboundRefused("'business.example' port 443 leads to a private address"),
        ],
    )
    async def test_without_a_list_it_says_why_and_quotes_nothing(
        self, answer: OutboundReply | OutboundFailed | OutboundRefused
    ) -> None:  # V13
        outbound = ScriptedOutbound({URL: [answer]})
        with pytest.raises(ListUnavailable) as raised:
            await fetch_agents(outbound, "https://business.example", SecretStr("t0ken"))
        assert "s3cret" not in str(raised.value)
        assert "t0ken" not in str(raised.value)


def test_a_refused_entry_shows_no_more_of_an_id_than_is_good_for_a_log() -> None:  # V13
    (entry,) = read({"id": "/" + "x" * 600, "name": "A"}).refused
    assert isinstance(entry, Refused)
    assert all(len(problem.message) < 300 for problem in entry.problems)

"""Who calls, with which parameters, and what a refusal looks like on the wire (F15, F36, F43)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.auth import (
    ALL_SCOPES,
    LOCAL,
    Keyring,
    LocalOnly,
    Principal,
    Scope,
    authenticator_for,
    header,
    refuse_proxied,
    require,
)
from api.endpoints import MAX_KEY_LENGTH, Call, Parameter, Reply, answer_response, whole_number
from api.problems import bugs_answered, error_response, internal_error
from flow_engine.errors import (
    CallTheOperator,
    CorrectTheInput,
    Finding,
    FlowEngineError,
    LookElsewhere,
    ReloadAndDecide,
    RetryLater,
    unknown_conversation,
)
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.dialogue import ENGINE, ConversationRef

KEY = "a-key-of-sixteen-or-more"


def bearer(key: str | bytes, scheme: str = "Bearer") -> list[tuple[bytes, bytes]]:
    presented = key if isinstance(key, bytes) else key.encode()
    return [(b"authorization", scheme.encode() + b" " + presented)]


def keyring(*entries: dict[str, object]) -> Keyring:
    shared = {"tenant": "acme", "scopes": ["agent"]}
    return Keyring.parse(orjson.dumps({"keys": [{**shared, **entry} for entry in entries]}))


def refused(demand: Any) -> FlowEngineError:
    with pytest.raises(FlowEngineError) as raised:
        demand()
    return raised.value


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            bearer(KEY),
            bearer(KEY, "bearer"),
            bearer(KEY, "BEARER"),
            bearer(f"  {KEY}\t "),
            [(b"host", b"x"), *bearer(KEY)],
        ],
        ids=["as-it-is", "lower", "upper", "blanks", "after-others"],
    )
    def test_a_known_key_is_its_principal(self, headers: Any) -> None:
        ring = keyring({"key": KEY, "name": "the crm", "scopes": ["tools", "agent"]})
        assert ring.authenticate(headers) == Principal("acme", frozenset({"tools", "agent"}), "the crm")

    @pytest.mark.parametrize("case", [str.lower, str.upper])
    def test_a_key_may_stand_in_the_file_as_its_sha256(self, case: Any) -> None:
        digest = case(hashlib.sha256(KEY.encode()).hexdigest())
        assert keyring({"sha256": digest}).authenticate(bearer(KEY)).tenant_id == "acme"  # F43

    @pytest.mark.parametrize(
        "key",
        ["schlüssel-aus-köln", "ключ-от-всех-дверей", "鍵鍵鍵鍵鍵鍵鍵鍵鍵鍵鍵鍵鍵鍵鍵鍵", "senza-metà-di-là"],
    )
    def test_a_key_may_be_of_any_letters_which_come_as_utf_8(self, key: str) -> None:
        assert keyring({"key": key}).authenticate(bearer(key)).tenant_id == "acme"  # F43

    @pytest.mark.parametrize(
        "headers",
        [
            [],
            [(b"authorization", b"")],
            [(b"authorization", b"Bearer")],
            [(b"authorization", b"Bearer   ")],
            [(b"authorization", KEY.encode())],
            bearer(KEY, "Basic"),
            [(b"x-authorization", b"Bearer " + KEY.encode())],
        ],
    )
    def test_without_one_it_is_said_how_to_send_it(self, headers: Any) -> None:
        error = refused(lambda: keyring({"key": KEY}).authenticate(headers))
        assert (error.code, error.detail) == ("key_missing", "send 'Authorization: Bearer <key>'")  # F43

    @pytest.mark.parametrize("key", ["another-key-of-a-length", KEY.upper(), KEY[:-1], f"{KEY} {KEY}", "\0"])
    def test_any_other_key_is_not_known(self, key: str) -> None:
        error = refused(lambda: keyring({"key": KEY}).authenticate(bearer(key)))
        assert (error.code, error.detail) == ("key_unknown", "this API key is not known here")  # F43

    @settings(max_examples=30)
    @given(st.binary(max_size=40))
    def test_whatever_is_presented_it_is_known_or_refused(self, presented: bytes) -> None:
        with pytest.raises(CorrectTheInput) as raised:
            keyring({"key": KEY}).authenticate(bearer(presented))
        assert raised.value.code in {"key_missing", "key_unknown"}  # F36: never a fault

    def test_the_tenants_are_those_of_all_keys(self) -> None:
        ring = keyring({"key": KEY}, {"key": f"{KEY}-2", "tenant": "beta"}, {"key": f"{KEY}-3"})
        assert ring.tenants() == {"acme", "beta"}  # F43

    def test_a_file_may_begin_with_a_byte_order_mark(self) -> None:
        entry = {"key": KEY, "tenant": "acme", "scopes": ["agent"]}
        ring = Keyring.parse(b"\xef\xbb\xbf" + orjson.dumps({"keys": [entry]}))
        assert ring.tenants() == {"acme"}  # F43

    @pytest.mark.parametrize(
        ("file", "told"),
        [
            (b"", "Invalid JSON"),
            (b"{}", "/keys 'keys' is required here"),
            (b'{"keys": [{}]}', "/keys/0/tenant 'tenant' is required here"),
            (b'{"keys": [], "more": 1}', "/more is no property here; accepted are 'keys'"),
            (b'{"keys": {}}', "/keys must be an array, not an object"),
            (
                b'{"keys": [{"tenant": "t", "scopes": []}]}',
                "/keys/0 give either 'key' or 'sha256'",
            ),
            (
                orjson.dumps(
                    {"keys": [{"key": KEY, "sha256": "0" * 64, "tenant": "t", "scopes": []}]},
                ),
                "/keys/0 give either 'key' or 'sha256'",
            ),
            (
                b'{"keys": [{"tenant": "", "scopes": []}]}',
                "/keys/0/tenant must have at least 1 character; /keys/0 give either 'key' or 'sha256'",
            ),
            (
                b'{"keys": [{"key": "short", "tenant": "t", "scopes": []}]}',
                "/keys/0/key a key has at least 16 characters that are no blanks around it",
            ),
            (
                b'{"keys": [{"key": " a-key-of-sixteen-or-more", "tenant": "t", "scopes": []}]}',
                "/keys/0/key a key has no blanks around it: they are lost in a header",
            ),
            (
                orjson.dumps({"keys": [{"sha256": "0" * 63, "tenant": "t", "scopes": []}]}),
                "/keys/0/sha256 must match pattern",
            ),
            (
                orjson.dumps(
                    {"keys": [{"sha256": hashlib.sha256(b"").hexdigest(), "tenant": "t", "scopes": []}]}
                ),
                "/keys/0/sha256 this is the SHA-256 of an empty text",
            ),
            (
                orjson.dumps({"keys": [{"key": KEY, "tenant": "", "scopes": ["root"]}]}),
                "/keys/0/tenant must have at least 1 character; /keys/0/scopes/0 must be "
                "'designer', 'agent', 'tools', 'chat', 'gateway', 'workspace', 'operator', 'privacy' or "
                "'admin', not 'root'",
            ),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_a_file_that_is_not_valid_is_told_with_every_place(self, file: bytes, told: str) -> None:
        error = refused(lambda: Keyring.parse(file))
        assert error.code == "api_keys_unreadable"  # F43
        assert error.detail.startswith("the file of API keys is not valid: ")
        assert told in error.detail

    def test_a_key_that_stands_twice_is_refused_with_every_two_places(self) -> None:
        digest, other = hashlib.sha256(KEY.encode()).hexdigest(), {"key": f"{KEY}-2"}
        entries = [{"key": KEY}, other, {"sha256": digest.upper(), "tenant": "beta"}, other, {"key": KEY}]
        error = refused(lambda: keyring(*entries))
        assert error.code == "api_keys_unreadable"  # F43
        assert "/keys/2 has the key of /keys/0" in error.detail
        assert "/keys/3 has the key of /keys/1" in error.detail
        assert "/keys/4 has the key of /keys/0" in error.detail
        assert KEY not in error.detail
        assert digest not in error.detail.lower()

    def test_keys_that_stand_twice_are_told_beside_entries_that_are_wrong(self) -> None:
        entries = [{"key": KEY}, {"key": KEY, "tenant": ""}, {"key": "short", "sha256": "0" * 63}]
        error = refused(lambda: keyring(*entries))
        for told in ("/keys/1/tenant", "/keys/1 has the key of /keys/0", "/keys/2/key", "/keys/2/sha256"):
            assert told in error.detail  # F43
        assert "/keys/2 give either 'key' or 'sha256'" in error.detail

    def test_no_key_is_ever_told(self) -> None:
        error = refused(lambda: Keyring.parse(b'{"keys": [{"key": "hush", "tenant": 7, "scopes": "all"}]}'))
        assert "hush" not in str(error)  # F46


class TestScopes:
    @pytest.mark.parametrize("scope", get_args(Scope))
    def test_each_scope_opens_itself_and_admin_opens_all(self, scope: Any) -> None:
        others = [other for other in get_args(Scope) if other not in (scope, "admin")]
        require(Principal("t", frozenset({scope}), "n"), [scope])  # F43
        require(Principal("t", frozenset({"admin"}), "n"), [scope])
        if scope != "admin":
            error = refused(lambda: require(Principal("t", frozenset(others), "n"), [scope]))
            assert (error.code, error.detail) == (
                "scope_missing",
                f"this needs a key with one of the scopes: {scope}",
            )

    def test_any_one_of_several_is_enough(self) -> None:
        require(Principal("t", frozenset({"tools"}), "n"), ["agent", "tools"])  # F43
        error = refused(lambda: require(Principal("t", frozenset({"designer"}), "n"), ["agent", "tools"]))
        assert error.detail == "this needs a key with one of the scopes: agent, tools"

    def test_without_keys_everybody_on_this_machine_may_do_everything(self) -> None:
        assert (LOCAL.tenant_id, LOCAL.scopes) == ("default", ALL_SCOPES)  # F43
        assert LocalOnly().tenants() == {"default"}


class TestWithoutKeys:
    @pytest.mark.parametrize(
        "host",
        [
            *("localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080"),
            *("[::1]", "[::1]:8080"),
        ],
    )
    def test_a_local_name_is_answered(self, host: str) -> None:
        assert LocalOnly().authenticate([(b"host", host.encode())]) == LOCAL  # F43

    @pytest.mark.parametrize(
        "host",
        [
            *("", "example.com", "localhost.example.com", "localhost.", "127.0.0.2", "10.0.0.1:8080"),
            *("127.0.0.1.nip.io", "::1", "[::2]", "0.0.0.0", "local host"),
        ],
    )
    def test_any_other_name_is_not(self, host: str) -> None:
        error = refused(lambda: LocalOnly().authenticate([(b"host", host.encode())]))
        assert (error.code, error.detail) == (  # F43: a page whose name points here
            "host_not_local",
            "without API keys this service answers to 'localhost' and '127.0.0.1' only",
        )

    @pytest.mark.parametrize("host", ["127.0.0.2", "127.1.2.3", "::1"])
    def test_so_is_the_address_that_it_listens_on(self, host: str) -> None:
        named = f"[{host}]" if ":" in host else host
        door = authenticator_for(None, host)
        for headers in (
            [(b"host", f"{named}:8080".encode())],
            [(b"host", named.encode()), (b"origin", f"http://{named}:8080".encode())],
        ):
            assert door.authenticate(headers) == LOCAL  # F43
        assert refused(lambda: door.authenticate([(b"host", b"127.0.0.3")])).code == "host_not_local"

    @pytest.mark.parametrize(
        ("origin", "answered"),
        [
            (None, True),
            ("http://localhost:3000", True),
            ("https://127.0.0.1", True),
            ("http://[::1]:8080", True),
            ("https://editor.example", True),
            ("https://editor.example:8443", False),
            ("http://editor.example", False),
            ("https://evil.example", False),
            ("null", False),
            ("", False),
            ("http://localhost.evil.example", False),
        ],
    )
    def test_pages_are_answered_by_their_origin(self, origin: str | None, answered: bool) -> None:
        headers = [(b"host", b"localhost")]
        if origin is not None:
            headers.append((b"origin", origin.encode()))
        door = LocalOnly(["https://editor.example"])
        if answered:
            assert door.authenticate(headers) == LOCAL  # F43
        else:
            assert refused(lambda: door.authenticate(headers)).code == "origin_not_local"
            for told in (True, False):  # only a service that reads the setting names it
                keyless = LocalOnly(() if told else None)
                refusal = refused(lambda: keyless.authenticate(headers))  # noqa: B023
                assert ("FLOW_ENGINE_CORS_ORIGINS" in refusal.detail) is told

    @pytest.mark.parametrize(
        ("name", "passes"),
        [
            ("forwarded", False),
            ("via", False),
            ("x-real-ip", False),
            ("x-forwarded-for", False),
            ("x-forwarded-host", False),
            ("x-forwarded-anything", False),
            ("x-request-id", True),
            ("x-forward", True),
        ],
    )
    def test_what_comes_through_a_proxy_is_refused_by_its_header(self, name: str, passes: bool) -> None:
        headers = [(b"host", b"localhost"), (name.encode(), b"1")]
        if passes:
            refuse_proxied(headers)  # F43
            return
        error = refused(lambda: refuse_proxied(headers))
        assert error.code == "proxied_without_keys"
        assert f"as by its header {name!r};" in error.detail


class TestWhichDoor:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
    def test_on_loopback_no_keys_are_needed(self, host: str) -> None:
        assert isinstance(authenticator_for(None, host), LocalOnly)  # F43

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com", ""])
    def test_anywhere_else_they_are(self, host: str) -> None:
        error = refused(lambda: authenticator_for(None, host))
        assert isinstance(error, CallTheOperator)
        assert (error.code, error.detail) == (  # F43
            "keys_required",
            f"to listen on {host} set FLOW_ENGINE_API_KEYS_FILE; without keys only loopback is served",
        )

    def test_a_file_of_keys_serves_everywhere(self, tmp_path: Path) -> None:
        file = tmp_path / "keys.json"
        file.write_bytes(orjson.dumps({"keys": [{"key": KEY, "tenant": "acme", "scopes": ["admin"]}]}))
        door = authenticator_for(file, "0.0.0.0")
        assert door.authenticate(bearer(KEY)).may("privacy")  # F43

    def test_one_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        file = tmp_path / "none.json"
        error = refused(lambda: authenticator_for(file, "localhost"))
        assert (error.code, error.detail) == (
            "api_keys_unreadable",
            f"the file of API keys {file}: No such file or directory",
        )

    def test_one_that_is_not_valid_is_told_with_its_path(self, tmp_path: Path) -> None:
        file = tmp_path / "keys.json"
        file.write_bytes(b'{"keys": [')
        error = refused(lambda: authenticator_for(file, "localhost"))
        assert error.code == "api_keys_unreadable"  # F43
        assert error.detail.startswith(f"the file of API keys {file} is not valid: ")


async def nothing_comes() -> Any:
    raise AssertionError("nothing is read")


def call(
    path: str = "/v1/memory/c",
    query: str = "",
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    method: str = "PUT",
) -> Call:
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "path_params": {"id": "c"},
    }
    return Call(scope, nothing_comes, Principal("acme", frozenset(), "the crm"), body)


class TestParameters:
    @pytest.mark.parametrize(
        ("query", "number"), [("", 0), ("n=0", 0), ("n=7", 7), ("n=100", 100), ("n=007", 7), ("n=1&n=7", 7)]
    )
    def test_a_whole_number_is_read(self, query: str, number: int) -> None:
        assert call(query=query).whole_number("n", at_most=100) == number  # F31

    @pytest.mark.parametrize(
        "text", ["", "-1", "101", "1.5", "1e2", "%2B7", "seven", "٧", "²", "1_0", "0x1", "9" * 13, "9" * 5000]
    )
    def test_what_is_none_or_out_of_its_bounds_is_refused(self, text: str) -> None:
        error = refused(lambda: call(query=f"n={text}").whole_number("n", at_most=100))
        assert isinstance(error, CorrectTheInput)
        message = "'n' is a whole number from 0 to 100"
        assert error.findings == (Finding("", "n_invalid", message),)  # F36

    @pytest.mark.parametrize(("text", "passes"), [("1", True), ("5", True), ("0", False), ("6", False)])
    def test_both_bounds_belong_to_it(self, text: str, passes: bool) -> None:
        if passes:
            assert whole_number("n", text, at_least=1, at_most=5) == int(text)
        else:
            error = refused(lambda: whole_number("n", text, at_least=1, at_most=5))
            assert error.detail == "'n' is a whole number from 1 to 5"

    @pytest.mark.parametrize(
        ("query", "default", "flag"),
        [
            ("", False, False),
            ("", True, True),
            ("f=true", False, True),
            ("f=false", True, False),
        ],
    )
    def test_a_flag_is_true_or_false(self, query: str, default: bool, flag: bool) -> None:
        assert call(query=query).flag("f", default=default) is flag  # F27

    @pytest.mark.parametrize("text", ["", "1", "yes", "True", "TRUE", "on"])
    def test_and_nothing_else(self, text: str) -> None:
        error = refused(lambda: call(query=f"f={text}").flag("f"))
        assert (error.code, error.detail) == ("f_invalid", "'f' is 'true' or 'false'")  # F36

    def test_a_choice_is_one_of_its_words(self) -> None:
        words = ("markdown", "toon")
        assert call(query="format=toon").choice("format", words) == "toon"  # F21
        assert call().choice("format", words) is None
        error = refused(lambda: call(query="format=xml").choice("format", words))
        assert (error.code, error.detail) == ("format_invalid", "'format' is one of: markdown, toon")

    @pytest.mark.anyio
    async def test_parameters_that_nobody_reads_are_refused_with_what_is_near(self) -> None:
        wanted = {name: Parameter(name, "") for name in ("campaignId", "channel")}
        await call(query="channel=phone&campaignId=1").refuse_wrong_parameters(wanted)  # F36
        with pytest.raises(CorrectTheInput) as raised:
            await call(query="Channel=phone&campaign=1&x=2").refuse_wrong_parameters(wanted)
        assert raised.value.findings == (
            Finding(
                "",
                "parameter_unknown",
                "'Channel' is no query parameter here; nearest are 'channel'",
            ),
            Finding(
                "",
                "parameter_unknown",
                "'campaign' is no query parameter here; nearest are 'campaignId'",
            ),
            Finding(
                "",
                "parameter_unknown",
                "'x' is no query parameter here; accepted are 'campaignId', 'channel'",
            ),
        )


class TestIdempotencyKeys:
    @pytest.mark.parametrize("key", ["k", "x" * MAX_KEY_LENGTH, "with spaces", "è"])
    def test_one_of_1_to_255_characters_is_taken_with_the_requests_fingerprint(self, key: str) -> None:
        asked = call(headers=[("idempotency-key", key)], body=b"[]")
        assert asked.idempotency == IdempotencyKey(key, asked.fingerprint)  # F15

    @pytest.mark.parametrize("key", ["", "x" * (MAX_KEY_LENGTH + 1)])
    def test_any_other_is_refused(self, key: str) -> None:
        error = refused(lambda: call(headers=[("idempotency-key", key)]).idempotency)
        assert (error.code, error.detail) == (
            "idempotency_key_invalid",
            "an Idempotency-Key has 1 to 255 characters",
        )  # F15

    def test_without_one_there_is_none(self) -> None:
        assert call().idempotency is None  # F15

    @pytest.mark.parametrize(
        "other",
        [
            call(body=b"[] "),
            call(query="a=1", body=b"[]"),
            call("/v1/memory/d", body=b"[]"),
            call(body=b"[]", method="POST"),
            call("/v1/memory/c?", body=b"[]"),
        ],
        ids=["body", "query", "path", "method", "a-sign-of-the-query"],
    )
    def test_another_request_has_another_fingerprint(self, other: Call) -> None:
        assert call(body=b"[]").fingerprint != other.fingerprint  # F15

    def test_with_and_without_the_version_prefix_it_is_the_same_request(self) -> None:
        assert call("/memory/c", body=b"[]").fingerprint == call("/v1/memory/c", body=b"[]").fingerprint


class TestCalls:
    def test_a_conversation_is_the_tenants_and_knows_who_acts(self) -> None:
        conversation = call().conversation("c", "call-1")
        assert conversation == ConversationRef("acme", "c")  # F43
        assert (conversation.by, ConversationRef("acme", "c").by) == ("the crm", ENGINE)

    @pytest.mark.parametrize(
        ("named", "seen"),
        [
            (None, False),
            ('"abc"', True),
            ('W/"abc"', True),
            ('"x", "abc"', True),
            ('"x" ,W/"abc" ', True),
            ("*", True),
            ('"x"', False),
            ("abc", False),
            ('"ab"', False),
            ("", False),
        ],
    )
    def test_an_etag_is_seen_by_weak_comparison(self, named: str | None, seen: bool) -> None:
        headers = [] if named is None else [("if-none-match", named)]
        assert call(headers=headers).has_seen('"abc"') is seen  # F31, RFC 9110

    def test_of_headers_with_one_name_the_first_counts(self) -> None:
        headers = [(b"a", b"1"), (b"b", b"\xe8"), (b"a", b"2")]
        assert [header(headers, b"a"), header(headers, b"b"), header(headers, b"c")] == ["1", "è", None]
        assert header(headers, b"c", "default") == "default"


class TestProblems:
    """Errors as RFC 9457 problem documents: the status follows from the kind, else from the code (F36)."""

    @pytest.mark.parametrize(
        ("error", "status", "title", "more"),
        [
            pytest.param(
                CorrectTheInput("body_invalid", "d", [Finding("/a", "missing", "m")]),
                422,
                "The request cannot be taken as it is",
                {"errors": [{"pointer": "/a", "code": "missing", "message": "m"}]},
                id="input",
            ),
            pytest.param(LookElsewhere("x_unknown", "d"), 404, "Nothing is there", {}, id="elsewhere"),
            pytest.param(
                ReloadAndDecide("x", "d", state={"revision": 3}, accepted=("a", "b")),
                409,
                "The current state forbids it",
                {"state": {"revision": 3}, "accepted": ["a", "b"]},
                id="state",
            ),
            pytest.param(RetryLater("away", "d"), 503, "Try again later", {}, id="later"),
            pytest.param(
                CallTheOperator("x", "d"), 500, "An operator has to look at this", {}, id="operator"
            ),
        ],
    )
    def test_each_kind_has_its_status(
        self, error: FlowEngineError, status: int, title: str, more: dict[str, Any]
    ) -> None:
        response = error_response(error)
        assert response.status_code == status  # F36
        assert response.headers["content-type"] == "application/problem+json"
        assert orjson.loads(response.body) == {
            "type": f"urn:flow-engine:problem:{error.code}",
            "title": title,
            "status": status,
            "code": error.code,
            "detail": "d",
            "errors": [],
            **more,
        }

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("json_invalid", 400),
            ("too_large", 413),
            ("key_missing", 401),
            ("key_unknown", 401),
            ("scope_missing", 403),
            ("host_not_local", 403),
            ("origin_not_local", 403),
            ("proxied_without_keys", 403),
            ("any_other", 422),
        ],
    )
    def test_some_codes_have_a_status_of_their_own(self, code: str, status: int) -> None:
        response = error_response(CorrectTheInput(code, "d"))
        assert (response.status_code, orjson.loads(response.body)["status"]) == (status, status)  # F36
        assert response.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)

    @pytest.mark.parametrize("seconds", [0, 1, 30])
    def test_what_may_be_sent_again_says_when(self, seconds: int) -> None:
        response = error_response(RetryLater("memory_unavailable", "d", after_seconds=seconds))
        assert response.headers["retry-after"] == str(seconds)  # F44
        assert "retry-after" not in error_response(CallTheOperator("x", "d")).headers

    def test_a_conversation_of_another_tenant_is_told_as_one_that_never_was(self) -> None:
        body = orjson.loads(error_response(unknown_conversation("c-1")).body)
        assert (body["status"], body["code"], body["detail"]) == (
            404,
            "conversation_unknown",
            "there is no conversation 'c-1'",
        )  # F43

    def test_a_bug_tells_nothing_of_itself(self) -> None:
        assert orjson.loads(internal_error().body) == {  # F36, F46
            "type": "urn:flow-engine:problem:internal_error",
            "title": "An error of this service",
            "status": 500,
            "code": "internal_error",
            "detail": "the service has an error, which is logged",
            "errors": [],
        }

    @pytest.mark.anyio
    async def test_bugs_are_answered_and_what_goes_well_is_passed_on(self) -> None:
        seen: list[Exception] = []

        async def well() -> str:
            return "well"

        async def ill() -> str:
            raise KeyError("a name")

        assert await bugs_answered(well(), lambda bug: "never") == "well"
        assert await bugs_answered(ill(), lambda bug: seen.append(bug) or "answered") == "answered"
        assert [type(bug) for bug in seen] == [KeyError]  # F36


class TestReplies:
    @pytest.mark.parametrize(
        ("reply", "headers"),
        [
            (
                Reply(b"{}"),
                [(b"content-length", b"2"), (b"content-type", b"application/json")],
            ),
            (
                Reply(b"abc", 201, {"ETag": '"1"'}, "text/plain"),
                [(b"etag", b'"1"'), (b"content-length", b"3"), (b"content-type", b"text/plain")],
            ),
            (Reply(b"", 304, {"ETag": '"1"'}, None), [(b"etag", b'"1"')]),
        ],
    )
    @pytest.mark.anyio
    async def test_a_reply_is_its_bytes_with_few_headers(self, reply: Reply, headers: Any) -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await reply({"type": "http"}, nothing_comes, send)
        head, body = sent
        assert (head["status"], head["headers"]) == (reply.status_code, headers)  # F36
        assert body["body"] == reply.body

    @pytest.mark.parametrize("replayed", [False, True])
    def test_a_replayed_answer_says_so(self, replayed: bool) -> None:
        response = answer_response(FinalReply(201, b"{}", replayed))
        assert (response.body, response.status_code) == (b"{}", 201)  # F15
        named = dict(response.raw_headers).get(b"idempotency-replayed")
        assert named == (b"true" if replayed else None)

"""What a client may send, what it gets instead of an answer, and which requests are the same (W5, W7, W9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channels.gateway.config import Backend, GatewayFile, read_gateway_file
from channels.gateway.routing import OPEN_S, Breaker, Routing, Server
from channels.gateway.wire import (
    ApiError,
    EventReader,
    UpstreamFailed,
    cache_key,
    error_frame,
    frame,
    read_request,
)
from flow_engine.errors import CallTheOperator

CHAT = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}


def refused(raw: bytes, needs: str = "messages") -> ApiError:
    with pytest.raises(ApiError) as raised:
        read_request(raw, needs=needs)
    return raised.value


def error(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": "invalid_request_error", "param": param, "code": code}


class TestRequests:
    @pytest.mark.parametrize(
        ("raw", "needs", "told"),
        [
            (b"", "messages", error("the body is no JSON: Expecting value: line 1 column 1 (char 0)")),
            (b"[]", "messages", error("the body must be a JSON object")),
            (b"7", "input", error("the body must be a JSON object")),
            (
                b"{}",
                "messages",
                error("'model' must be the name of a model", "model", "model_missing"),
            ),
            (
                b'{"model": ""}',
                "messages",
                error("'model' must be the name of a model", "model", "model_missing"),
            ),
            (
                b'{"model": ["m"], "input": "x"}',
                "input",
                error("'model' must be the name of a model", "model", "model_missing"),
            ),
            (
                b'{"model": "m"}',
                "messages",
                error("'messages' must be a list of at least one message", "messages"),
            ),
            (
                b'{"model": "m", "messages": []}',
                "messages",
                error("'messages' must be a list of at least one message", "messages"),
            ),
            (
                b'{"model": "m", "messages": "hi"}',
                "messages",
                error("'messages' must be a list of at least one message", "messages"),
            ),
            (
                b'{"model": "m", "messages": [{}, "hi"]}',
                "messages",
                error("each of 'messages' must be an object", "messages"),
            ),
            (b'{"model": "m"}', "input", error("'input' must be there", "input")),
            (b'{"model": "m", "input": null}', "input", error("'input' must be there", "input")),
            (
                b'{"model": "m", "messages": [{"n": NaN}]}',
                "messages",
                error("the body is no JSON: NaN is no JSON"),
            ),
            (
                b'{"model": "m", "messages": [{"n": 1e400}]}',
                "messages",
                error("the body is no JSON: 1e400 is out of range"),
            ),
        ],
    )
    def test_what_cannot_be_meant_is_a_400_in_the_vendors_shape(
        self, raw: bytes, needs: str, told: dict[str, Any]
    ) -> None:
        found = refused(raw, needs)
        assert (found.status, orjson.loads(found.body())) == (400, {"error": told})  # W9

    @pytest.mark.parametrize("depth", [100_000, 2_000_000])
    def test_nesting_has_an_end(self, depth: int) -> None:
        found = refused(b'{"model": "m", "messages": ' + b"[" * depth)
        assert found.error["message"] == "the body is no JSON: nested too deeply"  # W9

    @pytest.mark.parametrize(
        ("body", "streams", "usage", "tools"),
        [
            ({}, False, False, False),
            ({"stream": True}, True, False, False),
            ({"stream": 1}, False, False, False),
            ({"stream": "true"}, False, False, False),
            ({"stream": True, "stream_options": {"include_usage": True}}, True, True, False),
            ({"stream": True, "stream_options": {"include_usage": 1}}, True, False, False),
            ({"stream": True, "stream_options": None}, True, False, False),
            ({"stream": True, "stream_options": []}, True, False, False),
            ({"tools": []}, False, False, False),
            ({"tools": [{}]}, False, False, True),
            ({"functions": [{}]}, False, False, True),
            ({"tools": None, "functions": None}, False, False, False),
        ],
    )
    def test_what_a_request_wants_is_read_of_its_own_fields(
        self, body: dict[str, Any], streams: bool, usage: bool, tools: bool
    ) -> None:
        raw = orjson.dumps({**CHAT, **body})
        request = read_request(raw, needs="messages")
        assert (request.streams, request.wants_usage, request.has_tools) == (streams, usage, tools)  # W5, W9
        assert (request.raw, request.model) == (raw, "small")


class TestUpstreamErrors:
    @pytest.mark.parametrize(
        ("status", "shown", "passing", "broken"),
        [
            (400, 400, False, False),
            (401, 502, False, False),
            (403, 502, False, False),
            (404, 404, False, False),
            (408, 504, True, False),
            (409, 502, False, False),
            (422, 422, False, False),
            (429, 429, True, False),
            (500, 502, True, True),
            (501, 502, True, True),
            (502, 502, True, True),
            (503, 503, True, True),
            (504, 504, True, True),
            (529, 502, True, True),
        ],
    )
    def test_each_status_of_a_backend_is_shown_as_one_of_ours(
        self, status: int, shown: int, passing: bool, broken: bool
    ) -> None:
        failed = UpstreamFailed.answered("local", status, b"{}", "7")
        assert (failed.status, failed.passing, failed.broken) == (shown, passing, broken)  # W9
        assert failed.headers == {"Retry-After": "7"}
        assert UpstreamFailed.answered("local", status, b"{}", None).headers == {}

    @pytest.mark.parametrize("status", [401, 408, 500, 503])
    def test_whose_words_are_not_for_clients_is_told_by_its_status(self, status: int) -> None:
        failed = UpstreamFailed.answered("local", status, b'{"error": {"message": "our key: sk-1"}}', None)
        assert failed.error == {  # F46
            "message": f"backend 'local' answered with status {status}",
            "type": "upstream_error",
            "param": None,
            "code": "upstream_failed",
        }

    @pytest.mark.parametrize(
        ("body", "status", "told"),
        [
            (b'{"error": {"message": "no", "code": "x"}}', 400, {"message": "no", "code": "x"}),
            (b'{"error": {"code": 7}}', 400, {"code": 7}),
            (b'{"error": "no such model"}', 404, error("no such model", code="model_not_found")),
            (b'[{"error": {"message": "google"}}]', 400, {"message": "google"}),
            (b'{"message": "bare"}', 422, {"message": "bare"}),
            (b'{"detail": [1]}', 422, error("status 422")),
            (b"plain text", 400, error("plain text")),
            (b"\xff\xfe", 400, error("\ufffd\ufffd")),
            (b"", 400, error("status 400")),
            (b"[]", 400, error("status 400")),
            (b"null", 404, error("status 404", code="model_not_found")),
            (b"x" * 2000, 400, error("x" * 1000)),
        ],
    )
    def test_an_error_of_any_vendor_is_one_object(
        self, body: bytes, status: int, told: dict[str, Any]
    ) -> None:
        assert UpstreamFailed.answered("local", status, body, None).error == told  # W9

    def test_one_that_asks_to_slow_down_says_so(self) -> None:
        told = UpstreamFailed.answered("local", 429, b"slow down", "3").error
        assert (told["type"], told["message"]) == ("rate_limit_error", "slow down")  # W9

    @pytest.mark.parametrize("broken", [True, False])
    def test_one_that_says_nothing_may_be_tried_elsewhere(self, broken: bool) -> None:
        failed = UpstreamFailed.silent("local", 504, "did not answer within 60 s", broken=broken)
        assert (failed.status, failed.passing, failed.broken) == (504, True, broken)  # W9
        assert str(failed) == "backend 'local' did not answer within 60 s"

    def test_a_cut_stream_ends_with_an_error_frame(self) -> None:
        body = error_frame(ApiError(502, "cut", code="upstream_failed", type="upstream_error"))
        told = {"message": "cut", "type": "upstream_error", "param": None, "code": "upstream_failed"}
        assert body == b"data: " + orjson.dumps({"error": told}) + b"\n\n"  # W9


def events(sent: bytes, cuts: list[int]) -> list[tuple[str, bytes]]:
    reader, found, at = EventReader(), list[tuple[str, bytes]](), 0
    for cut in [*sorted(cuts), len(sent)]:
        found += [(event.name, event.data) for event in reader.feed(sent[at:cut])]
        at = max(at, cut)
    return found


class TestEvents:
    LINES = st.sampled_from(
        [b"data: a", b"data:b", b"data", b"event: x", b": comment", b"id: 1", b"", b"data:  c", b"retry: 3"]
    )
    ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])

    @settings(max_examples=30)
    @example([(b"data: a", b"\r\n"), (b"", b"\r\n")], [8, 8, 10])  # an empty piece within the end of a line
    @given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.lists(st.integers(0, 80), max_size=6))
    def test_however_a_stream_is_cut_its_events_are_the_same(
        self, lines: list[tuple[bytes, bytes]], cuts: list[int]
    ) -> None:
        sent = b"".join(line + end for line, end in lines)
        assert events(sent, [min(cut, len(sent)) for cut in cuts]) == events(sent, [])  # W9

    @settings(max_examples=30)
    @given(st.lists(st.binary(max_size=20).filter(lambda data: b"\r" not in data), max_size=5))
    def test_what_is_framed_is_read_back(self, pieces: list[bytes]) -> None:
        sent = b"".join(frame(piece) for piece in pieces)
        assert events(sent, []) == [("", piece) for piece in pieces]  # W9


class TestSameRequests:
    def key(self, raw: bytes, tenant: str = "t", model: str = "m") -> str:
        return cache_key(read_request(raw, needs="messages"), tenant, model)

    BASE = b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":0}'

    @pytest.mark.parametrize(
        "other",
        [
            b'{"temperature":0,"messages":[{"content":"hi","role":"user"}],"model":"small"}',
            b' { "model" : "small" , "messages":[{"role":"user","content":"hi"}],"temperature":0 } ',
            b'{"model":"SMALL","messages":[{"role":"user","content":"hi"}],"temperature":0}',
            b'{"model":"small","messages":[{"role":"user","content":"\\u0068i"}],"temperature":0}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":0.0}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":-0}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":0e5}',
        ],
        ids=["order", "blanks", "alias", "escapes", "decimal", "minus", "exponent"],
    )
    def test_spelling_does_not_matter(self, other: bytes) -> None:
        assert self.key(other) == self.key(self.BASE)  # W7: the model is the resolved one

    @pytest.mark.parametrize(
        "other",
        [
            b'{"model":"small","messages":[{"role":"user","content":"Hi"}],"temperature":0}',
            b'{"model":"small","messages":[{"role":"user","content":"hi "}],"temperature":0}',
            b'{"model":"small","messages":[{"role":"system","content":"hi"}],"temperature":0}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":"0"}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":false}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":null}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":1e-300}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}]}',
            b'{"model":"small","messages":[{"role":"user","content":"hi"}],"temperature":0,"user":"a"}',
            b'{"model":"small","messages":[{"role":"user","content":[null,"0",null]}],"temperature":0}',
        ],
        ids=lambda body: str(body[50:])[:40],
    )
    def test_everything_else_does(self, other: bytes) -> None:
        assert self.key(other) != self.key(self.BASE)  # W7

    def test_tenants_and_models_share_nothing(self) -> None:
        keys = {self.key(self.BASE, tenant, model) for tenant in ("a", "b") for model in ("x", "y")}
        assert len(keys) == 4  # W7, F43

    @pytest.mark.parametrize("number", [b"1e-99999999999999999999", b"-0.1e-12345678901234567890"])
    def test_a_number_that_nobody_can_compare_shares_no_entry(self, number: bytes) -> None:
        raw = self.BASE.replace(b'"temperature":0', b'"temperature":' + number)
        with pytest.raises(ValueError, match="too large an exponent"):
            self.key(raw)  # W7

    @settings(max_examples=30)
    @given(st.integers(-(10**30), 10**30), st.integers(0, 6))
    def test_equal_numbers_are_equal_however_they_are_written(self, number: int, zeros: int) -> None:
        def at(text: str) -> str:
            return self.key(self.BASE.replace(b'"temperature":0', b'"temperature":' + text.encode()))

        assert at(str(number)) == at(f"{number}.{'0' * zeros}" if zeros else f"{number}e0")  # W7
        assert at(str(number)) != at(str(number + 1))


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class TestBreakers:
    def test_it_opens_after_so_many_failures_in_a_row(self) -> None:
        breaker = Breaker(3, Clock())
        for _ in range(2):
            breaker.failed()
        assert breaker.wait_s() == 0.0  # W9
        breaker.failed()
        assert breaker.wait_s() == OPEN_S

    def test_one_that_worked_begins_the_count_again(self) -> None:
        breaker = Breaker(2, Clock())
        for _ in range(5):
            breaker.failed()
            breaker.worked()
        assert breaker.wait_s() == 0.0

    def test_after_its_time_one_request_tries_and_the_others_wait(self) -> None:
        clock = Clock()
        breaker = Breaker(1, clock)
        breaker.failed()
        clock.at += 2.0
        assert breaker.wait_s() == 3.0
        clock.at += 3.0
        assert [breaker.wait_s(), breaker.wait_s()] == [0.0, OPEN_S]
        clock.at += 1.0
        breaker.failed()
        assert breaker.wait_s() == OPEN_S
        clock.at += OPEN_S
        assert breaker.wait_s() == 0.0
        breaker.worked()
        assert breaker.wait_s() == 0.0


def backend(name: str, **changes: Any) -> Backend:
    fields = {"kind": "openai", "url": "http://127.0.0.1/v1", "models": ("m",), **changes}
    return Backend.model_validate({"name": name, **fields})


class Anything:
    """An upstream that can do whatever is asked."""

    def check(self, request: Any, operation: Any) -> None:
        return


def routing(*backends: Backend, draw: float = 0.0) -> Routing:
    servers = [Server(each, Anything(), Breaker(1)) for each in backends]  # type: ignore[arg-type]
    return Routing(servers, lambda: draw)


class TestRoutes:
    @pytest.mark.parametrize(
        ("draw", "first"), [(0.0, "a"), (0.24, "a"), (0.25, "b"), (0.99, "b"), (1.0, "b")]
    )
    def test_a_backend_is_drawn_by_its_weight(self, draw: float, first: str) -> None:
        request = read_request(orjson.dumps({**CHAT, "model": "m"}), needs="messages")
        route = routing(backend("a", weight=1), backend("b", weight=3), draw=draw).route(request, "chat")
        assert [server.backend.name for server in route.servers] == [first]  # W9

    def test_its_fallbacks_follow_in_their_order_and_are_asked_for_its_model(self) -> None:
        table = (
            backend("a", models=(), aliases={"small": "m-7b"}, fallbacks=("c", "b")),
            backend("b", weight=0),
            backend("c", weight=0),
        )
        route = routing(*table).route(read_request(orjson.dumps(CHAT), needs="messages"), "chat")
        assert route.model == "m-7b"  # W9
        assert [server.backend.name for server in route.servers] == ["a", "c", "b"]

    def test_a_model_that_nobody_has_is_a_404_with_those_that_there_are(self) -> None:
        table = (backend("a", models=("x", "y"), aliases={"z": "x"}), backend("b", models=("w",), weight=0))
        with pytest.raises(ApiError) as raised:
            routing(*table).route(read_request(orjson.dumps(CHAT), needs="messages"), "chat")
        assert raised.value.status == 404  # W9
        assert raised.value.error == error(
            "the model 'small' does not exist here; there are: x, y, z", "model", "model_not_found"
        )

    def test_of_models_of_two_backends_the_first_is_told(self) -> None:
        table = (backend("a", models=("x",)), backend("b", models=("x", "y")))
        assert routing(*table).models() == {"x": "a", "y": "b"}

    @pytest.mark.parametrize(
        ("public", "own"), [("m", "m"), ("small", "m-7b"), ("m-7b", None), ("", None), ("M", None)]
    )
    def test_a_public_name_is_the_models_own_or_an_alias(self, public: str, own: str | None) -> None:
        assert backend("a", aliases={"small": "m-7b"}).resolved(public) == own


FILE = """
[[backends]]
name = "local"
kind = "ollama"
url = "http://127.0.0.1:11434/"
models = ["qwen3:8b"]
"""


class TestTheFile:
    def read(self, folder: Path, text: str) -> GatewayFile:
        path = folder / "gateway.toml"
        path.write_text(text)
        return read_gateway_file(path)

    def test_what_is_left_out_has_its_default(self, tmp_path: Path) -> None:
        file = self.read(tmp_path, FILE)
        assert file.model_dump(mode="json") == {
            "backends": [
                {
                    "name": "local",
                    "kind": "ollama",
                    "url": "http://127.0.0.1:11434",
                    "key_env": None,
                    "models": ["qwen3:8b"],
                    "aliases": {},
                    "weight": 1.0,
                    "fallbacks": [],
                    "timeout_s": 60.0,
                    "num_ctx": None,
                    "keep_alive": None,
                }
            ],
            "workspaces": [],
            "assistant": {"model": None},
            "budgets": [],
        }

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "/backends 'backends' is required here"),
            ("backends = []", "/backends accepted is at least one backend"),
            (
                FILE.replace('"ollama"', '"grok"'),
                "/backends/0/kind must be 'ollama', 'openai', 'vllm' or 'gemini', not 'grok'",
            ),
            (
                FILE.replace("http://127.0.0.1:11434/", "127.0.0.1:11434"),
                "/backends/0/url accepted is http:// or https://, a host, and where there are "
                "any a port and a path",
            ),
            (
                FILE.replace("127.0.0.1", "[1:2:3]"),
                "/backends/0/url accepted is http:// or https://, a host, and where there are "
                "any a port and a path",
            ),
            (
                FILE.replace('["qwen3:8b"]', "[]"),
                "/backends/0 a backend names at least one model, in 'models' or 'aliases'",
            ),
            (
                FILE.replace('"ollama"', '"vllm"') + "num_ctx = 8192\n",
                "/backends/0 num_ctx and keep_alive are for kind 'ollama'",
            ),
            (FILE + "wieght = 2\n", "/backends/0/wieght is no property here; nearest are 'weight'"),
            ("backends = 3", "/backends must be an array, not a number"),
            (FILE + "timeout_s = 0\n", "/backends/0/timeout_s must be greater than 0"),
            (
                FILE + FILE + 'fallbacks = ["local", "other"]\n',
                "two backends are named 'local'; 'local' cannot fall back on 'local'; 'local' "
                "cannot fall back on 'other'; backends are: local, local",
            ),
            (
                FILE + "timeout_s = 0\n" + FILE.replace('"ollama"', '"vllm"') + "num_ctx = 0\n",
                "/backends/0/timeout_s must be greater than 0; "
                "/backends/1/num_ctx must be greater than 0; "
                "/backends/1 num_ctx and keep_alive are for kind 'ollama'; "
                "two backends are named 'local'; backends are: local, local",
            ),
        ],
        ids=[
            *(
                "nothing",
                "none",
                "kind",
                "url",
                "brackets",
                "models",
                "num_ctx",
                "misspelled",
                "type",
                "timeout",
                "names",
            ),
            "together",
        ],
    )
    def test_what_cannot_be_meant_is_told_with_its_place(self, tmp_path: Path, text: str, told: str) -> None:
        with pytest.raises(CallTheOperator) as raised:
            self.read(tmp_path, text)
        assert raised.value.code == "gateway_config_invalid"
        assert raised.value.detail == f"{tmp_path / 'gateway.toml'}: {told}"

    def test_a_file_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(CallTheOperator) as raised:
            read_gateway_file(tmp_path / "none.toml")
        assert raised.value.detail == f"{tmp_path / 'none.toml'}: No such file or directory"

    def test_one_that_is_no_toml_is_told_with_its_line(self, tmp_path: Path) -> None:
        with pytest.raises(CallTheOperator, match="at line 2, column 1"):
            self.read(tmp_path, "a = 1\n= 2\n")

"""The samples of `deploy/` and the compose file keep to themselves what nobody outside needs (A17)."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from flow_engine.testing.simulations import SimulationLimits
from tests.ports import free_port
from tests.redis_fixture import end, spawn

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]


NGINX = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "conversation"),
    [
        ("/v1/prompt/c-1", "c-1"),
        ("/prompt/c-1", "c-1"),
        ("/v1/memory/a/b c", "a/b c"),
        ("/v1/conversations/c-1", "c-1"),
        ("/v1/change-task", None),
        ("/v1/flows/prompt/x", None),
        ("/v1/prompt/", None),
    ],
)
def test_the_proxy_knows_a_conversation_by_its_path(path: str, conversation: str | None) -> None:
    (pattern,) = re.findall(r'"~(\S+)" \$id;', NGINX)
    found = re.match(pattern.replace("(?<", "(?P<"), path)
    assert (None if found is None else found["id"]) == conversation
    for line in ("default $http_x_conversation_id;", '"" $request_id;', "hash $affinity consistent;"):
        assert line in NGINX


LONG = json.dumps({"prompt": "You book visits for a clinic. " * 200}).encode()


class Replica(ThreadingHTTPServer):
    """Answers with its port, a stream with events, what ends with `long` with a long reply."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = str(self.server.server_port).encode()
                if self.path.endswith("/stream"):
                    kind, body = "text/event-stream", b"data: {}\n\n" * 500
                elif self.path.endswith("/long"):
                    kind, body = "application/json", LONG
                else:
                    kind = "application/json"
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("ETag", '"1-2"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:  # is killed by it
                got.append(self.command)
                self.close_connection = True

            do_PUT = do_DELETE = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        got = self.got = list[str]()
        super().__init__(("127.0.0.1", 0), Handler)


@contextmanager
def proxied(folder: Path, replicas: int, *, ended: int = 0) -> Iterator[int]:
    """The port of an nginx with the sample's rules before so many replicas, of which some have `ended`."""
    others = [free_port() for _ in range(ended)]
    with proxied_replicas(folder, [Replica() for _ in range(replicas)], others) as port:
        yield port


@contextmanager
def proxied_replicas(folder: Path, servers: list[Replica], others: Sequence[int] = ()) -> Iterator[int]:
    """`others` are ports where no replica answers."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        port = free_port()
        ports = [*others, *(server.server_port for server in servers)]
        upstreams = "".join(f"server 127.0.0.1:{each} fail_timeout=1s;" for each in ports)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        rules = NGINX.replace("server api:8080 resolve fail_timeout=1s;", upstreams).replace(
            "http {", f"http {{ access_log off; {folders}"
        )
        rules = rules.replace("listen 8080", f"listen 127.0.0.1:{port}")
        config = folder / "nginx.conf"
        config.write_text(f"daemon off; pid {folder}/pid; error_log {folder}/error;\n{rules}")
        process = spawn(
            ["nginx", "-p", str(folder), "-e", str(folder / "error"), "-c", str(config)], folder / "log"
        )
        stack.callback(end, process)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, (folder / "log").read_text() + (folder / "error").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield port


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_requests_of_a_conversation_meet_one_replica_and_conversations_all_of_them(tmp_path: Path) -> None:
    with proxied(tmp_path, 2) as port:

        def replica(path: str, conversation: str | None = None) -> str:
            headers = {} if conversation is None else {"X-Conversation-Id": conversation}
            with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=headers)) as reply:
                return reply.read().decode()

        met: set[str] = set()
        for number in range(20):
            name = f"talk {number}"
            one = replica(f"/v1/prompt/talk%20{number}")
            assert replica(f"/memory/talk%20{number}") == one
            assert replica(f"/v1/conversations/tal%6B%20{number}") == one
            assert replica("/v1/change-task", name) == one
            met.add(one)
        assert len(met) == 2
        assert len({replica("/v1/flows") for _ in range(20)}) == 2


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_what_a_replica_that_has_ended_did_not_get_goes_to_another(tmp_path: Path) -> None:  # F42
    with proxied(tmp_path, 1, ended=1) as port:
        for number in range(20):
            with urlopen(f"http://127.0.0.1:{port}/v1/prompt/talk{number}") as reply:
                assert reply.status == 200


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_what_does_not_reach_a_replica_whose_machine_is_gone_goes_to_another(tmp_path: Path) -> None:  # F42
    """Each request of its conversations waited for a minute, and got 504."""
    with ExitStack() as stack:
        gone = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # who comes when its queue is full gets no answer at all
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(gone.getsockname())
        port = stack.enter_context(proxied_replicas(tmp_path, [Replica()], [gone.getsockname()[1]]))
        for number in range(6):
            with urlopen(f"http://127.0.0.1:{port}/v1/prompt/talk{number}") as reply:
                assert reply.status == 200


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_what_may_have_taken_effect_is_repeated_by_nobody_but_its_sender(
    tmp_path: Path, method: str
) -> None:  # F15
    servers = [Replica(), Replica()]
    with proxied_replicas(tmp_path, servers) as port, pytest.raises(HTTPError, match="502"):
        urlopen(Request(f"http://127.0.0.1:{port}/v1/memory/talk", b"[]", method=method))
    assert servers[0].got + servers[1].got == [method]


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_what_a_key_has_take_effect_once_goes_to_another_replica(tmp_path: Path, method: str) -> None:  # F15
    """Each restart of a replica cost the senders of such requests a 502."""
    servers, key = [Replica(), Replica()], {"Idempotency-Key": "1"}
    with proxied_replicas(tmp_path, servers) as port, pytest.raises(HTTPError, match="502"):
        urlopen(Request(f"http://127.0.0.1:{port}/v1/memory/talk", b"[]", key, method=method))
    assert (servers[0].got, servers[1].got) == ([method], [method])


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.parametrize(
    ("path", "takes", "compressed"),
    [
        ("/v1/prompt/long", "gzip, deflate", True),
        ("/v1/prompt/long", "identity", False),
        ("/v1/prompt/short", "gzip", False),
        ("/v1/conversations/long/stream", "gzip", False),
    ],
)
def test_long_replies_are_compressed_for_who_takes_them_so(
    tmp_path: Path, path: str, takes: str, compressed: bool
) -> None:  # F31
    with proxied(tmp_path, 1) as port:
        asked = Request(f"http://127.0.0.1:{port}{path}", headers={"Accept-Encoding": takes})
        with urlopen(asked) as reply:
            body, headers = reply.read(), reply.headers
    assert (headers["Content-Encoding"] == "gzip") is compressed
    if compressed:
        assert len(body) < len(LONG) / 3
        assert gzip.decompress(body) == LONG
        assert headers["ETag"] == 'W/"1-2"'  # If-None-Match compares weakly
    else:
        assert headers["ETag"] == '"1-2"'


def test_the_proxy_waits_for_the_longest_reply() -> None:  # A17
    """A simulation's, which is lost where the proxy gives it up."""
    (waits,) = re.findall(r"location / \{[^}]*proxy_read_timeout (\d+)s;", NGINX)
    assert int(waits) > SimulationLimits().within_s


@pytest.mark.parametrize("path", ["/metrics", "/health/live", "/health/ready", "/health"])
def test_the_proxy_passes_nothing_on_that_operators_ask(path: str) -> None:  # A17
    (refused,) = re.findall(r"location ~ (\S+) \{\s+return 404;", NGINX)
    assert re.match(refused, path)
    assert not re.match(refused, "/v1/prompt/metrics")


def test_no_key_is_in_clear_where_only_its_hash_is_needed() -> None:  # A17
    clear = {"secrets", "voice-key"}
    mounted = {
        name: {str(volume).partition(":")[0] for volume in service.get("volumes", ())} & clear
        for name, service in COMPOSE.items()
    }
    assert {name: volumes for name, volumes in mounted.items() if volumes} == {
        "keys": clear,
        "voice": {"voice-key"},
    }


def test_each_use_has_a_key_of_its_own(tmp_path: Path) -> None:  # A17
    command = COMPOSE["keys"]["command"][-1]
    for folder in ("secrets", "voice-key", "keys"):
        (tmp_path / folder).mkdir()
        command = command.replace(f'"/{folder}/', f'"{tmp_path}/{folder}/')
    exec(compile(command, "docker-compose.yml", "exec"), {})
    keys = yaml.safe_load((tmp_path / "keys" / "keys.json").read_text(encoding="utf-8"))["keys"]
    assert [(key["name"], key["scopes"]) for key in keys] == [
        ("admin", ["admin"]),
        ("tools", ["tools"]),
        ("voice", ["agent"]),
    ]
    assert len({key["sha256"] for key in keys}) == 3


def test_what_prometheus_scrapes_answers_it_in_the_composed_services() -> None:  # F36
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
    static = scraped["scrape_configs"][0]["static_configs"]
    assert {"targets": ["worker:9090"], "labels": {"process": "worker"}} in static
    assert COMPOSE["worker"]["environment"].items() >= {
        ("FLOW_ENGINE_WORKER_METRICS_HOST", "0.0.0.0"),  # its own network: no port is published
        ("FLOW_ENGINE_WORKER_METRICS_PORT", 9090),
    }
    assert "ports" not in COMPOSE["worker"]

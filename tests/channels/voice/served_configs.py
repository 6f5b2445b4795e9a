"""A config on the phone: `voice serve` as a process for many calls, a business that it calls, and callers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx

from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.sockets import eventually
from tests.ports import free_port
from tests.service_process import ROOT

API_KEY = "key-of-the-test"
READY_WITHIN_S = 60

HttpCall = tuple[str, str, Any]
"""Method, path with query, body (None for none)."""


def agent_environment(**variables: str) -> dict[str, str]:
    """Of a process that answers the phone: no setting of this one reaches it."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLOW_ENGINE_", "OPENAI_"))
    }
    return {**own, "OPENAI_API_KEY": API_KEY, **variables}


def serve_command(config: Path, port: int, *options: str) -> list[str]:
    serve = [sys.executable, "-m", "service.cli", "voice", "serve", "--config", str(config)]
    return [*serve, "--port", str(port), *options]


class Business:
    """A business's API, in a thread, as it outlives the tests' loops. `replies` are status and JSON (None: no
    content) by method and path; what is not there is answered with 404."""

    def __init__(self) -> None:
        self.replies: Mapping[str, tuple[int, Any]] = {}
        self._calls: list[HttpCall] = []
        business = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, document = business.reply(self.command, self.path, content)
                body = b"" if document is None else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = answer

            def log_message(self, format: str, *args: object) -> None:
                """Not onto the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reply(self, method: str, address: str, content: bytes) -> tuple[int, Any]:
        self._calls.append((method, address, json.loads(content) if content else None))
        return self.replies.get(f"{method} {address.partition('?')[0]}", (404, {"detail": "unknown"}))

    @property
    def calls(self) -> list[HttpCall]:
        return list(self._calls)

    def opens(self, replies: Mapping[str, tuple[int, Any]]) -> None:
        """Another day: with these replies, and nothing was called yet."""
        self.replies, self._calls = replies, []

    @contextmanager
    def open(self) -> Iterator[Business]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class ServedConfig:
    """`voice serve` on a config, with the business's API in place of its own. The model is looked for at one
    port, where each test opens its own."""

    def __init__(self, config: dict[str, Any], business: Business, directory: Path) -> None:
        self.config = config
        self.business = business
        self._port, self._model_port = free_port(), free_port()
        self._config_file = directory / "agent.json"
        self._config_file.write_text(json.dumps(config), "utf-8")
        self._recordings = directory / "recordings"
        options = ("--base-url", business.url, "--record", str(self._recordings))
        self._command = serve_command(self._config_file, self._port, *options)
        self._log = directory / "agent.log"

    @contextmanager
    def running(self) -> Iterator[ServedConfig]:
        realtime = f"ws://127.0.0.1:{self._model_port}/v1/realtime"
        environment = agent_environment(FLOW_ENGINE_REALTIME_URL=realtime, FLOW_ENGINE_VOICE_DRAIN_S="0")
        with self._log.open("wb") as log:
            process = subprocess.Popen(self._command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            self._wait_until_ready(process)
            yield self
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0, self.log()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def log(self) -> str:
        return self._log.read_text("utf-8")

    async def logged(self, event: str) -> list[dict[str, Any]]:
        """Wait for such a line in the log. Returns all of them."""
        await eventually(lambda: f'"event":"{event}"' in self.log())
        lines = (json.loads(line) for line in self.log().splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    async def told(self, method: str, path: str) -> list[HttpCall]:
        """Wait until the business is asked this. Returns all that it was asked."""
        business = self.business
        await eventually(lambda: any(call[:2] == (method, path) for call in business.calls))
        return business.calls

    async def replayed(self, line: FakeTwilioCall) -> list[dict[str, Any]]:
        """What `voice replay` prints for the recording of a call that is over."""
        recording = self._recordings / f"{line.stream_sid}.jsonl"
        replay = [sys.executable, "-m", "service.cli", "voice", "replay", "--config", str(self._config_file)]
        process = await asyncio.create_subprocess_exec(
            *replay, "--events", str(recording), cwd=ROOT, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return [json.loads(line) for line in output.splitlines()]

    def model(self, *args: Any, **options: Any) -> FakeRealtime:
        return FakeRealtime(*args, port=self._model_port, api_key=API_KEY, **options)

    async def dial(self, phone: str) -> FakeTwilioCall:
        """A call as Twilio puts it through: offered over HTTP, and streamed to where the answer says."""
        async with httpx.AsyncClient() as http:
            offer = {"From": phone, "To": "+390212345678", "CallSid": "CA1"}
            answer = await http.post(f"http://127.0.0.1:{self._port}/incoming-call", data=offer)
        assert answer.status_code == 200
        stream = ElementTree.fromstring(answer.text).find("Connect/Stream")
        assert stream is not None
        parameters = {each.attrib["name"]: each.attrib["value"] for each in stream.iter("Parameter")}
        # Twilio streams over TLS only, which a proxy in front of the agent takes away again.
        url = stream.attrib["url"].replace("wss://", "ws://", 1)
        return FakeTwilioCall(url, parameters=parameters, latency_s=0.01, speed=2)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=2):
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"the agent did not become ready: {self.log()}")

"""An agent as the manager knows one, for its tests: `--config FILE --port N`, `/healthz`, `/drain`.

The agent `x` notes what happens to it in `$FAKE_AGENTS/x.log`, a line each, and behaves as the words in
`$FAKE_AGENTS/x.mood` say: `calls=N`, `mute`, `crash`, `deaf`, `reloads`. It ends itself after a minute.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

signal.alarm(60)

config, port = Path(sys.argv[sys.argv.index("--config") + 1]), int(sys.argv[sys.argv.index("--port") + 1])
document = json.loads(config.read_text())
home = Path(os.environ["FAKE_AGENTS"])
agent_id = document["agent"]["id"]
draining = threading.Event()
running = [hashlib.sha256(config.read_bytes()).hexdigest()]


def note(*words: object) -> None:
    with (home / f"{agent_id}.log").open("a") as log:
        log.write(" ".join(map(str, words)) + "\n")


def mood() -> list[str]:
    try:
        return (home / f"{agent_id}.mood").read_text().split()
    except FileNotFoundError:
        return []


def terminated(*_: object) -> None:
    note("terminated")
    if "deaf" not in mood():
        os._exit(0)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        while "mute" in mood():
            time.sleep(0.05)
        self.answer(200)

    def do_POST(self) -> None:
        if self.path == "/reload":
            running.append(hashlib.sha256(config.read_bytes()).hexdigest())
            note("reloaded", json.loads(config.read_text())["base_url"])
        else:
            assert self.path == "/drain"
            draining.set()
            note("drained")
        self.answer(202)

    def answer(self, status: int) -> None:
        calls = next((int(word[6:]) for word in mood() if word.startswith("calls=")), 0)
        known = {"config": running[-1]} if "reloads" in mood() else {}
        told = {"status": "ok", "liveCalls": calls, "draining": draining.is_set(), **known}
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


signal.signal(signal.SIGTERM, terminated)
note("started", os.getpid(), port, document["base_url"], sorted(set(os.environ) & {"SIP_PASSWORD", "SECRET"}))
if "crash" in mood():
    sys.exit(3)
server = HTTPServer(("127.0.0.1", port), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
while "crash" not in mood():
    time.sleep(0.02)
os._exit(3)

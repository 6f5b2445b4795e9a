"""Conversations with the real service from outside: an agent's calls, a scripted model, a webhook."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import orjson
from anyio.from_thread import start_blocking_portal

from adapters.models.fake_openai import FakeOpenAI, Received, WireStep

Steps = Sequence[WireStep] | Callable[[Received], WireStep]

SAID_AT = "2026-03-04T09:30:00Z"
"""A Wednesday: relative dates in what is said count from here."""


@dataclass
class Talk:
    """One conversation, as an agent's platform has it over HTTP."""

    http: httpx.Client
    version: str
    conversation: str
    contact: str = "contact-1"
    said: int = 0

    def started(self, channel: str = "phone", **more: Any) -> Any:
        return self.posted(
            "handle-new-contact", conversationalFlowVersionId=self.version, channel=channel, **more
        )

    def bot(self, *sentences: str) -> None:
        for sentence in sentences:
            self._say("bot", sentence)

    def user(self, sentence: str) -> None:
        self._say("user", sentence)

    def exchanged(self, question: str, reply: str) -> None:
        """A question and its answer, read by the time this returns."""
        self.bot(question)
        self.user(reply)
        self.read()

    def read(self, within_s: float = 60.0) -> Any:
        """The prompt once the last user turn has been read. Fails when that takes longer."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            prompt = self.prompt(wait_ms=500)
            if prompt["memoryFresh"]:
                return prompt
        raise AssertionError("the last turn was not read in time")

    def prompt(self, **query: Any) -> Any:
        return _json(self.http.get(f"/v1/prompt/{self.conversation}", params=query))

    def memory(self) -> dict[str, Any]:
        """Variables by id, each as the memory API shows it."""
        reply = _json(self.http.get(f"/v1/memory/{self.conversation}"))
        return {variable["varId"]: variable for variable in reply["vars"]}

    def mined(self) -> dict[str, Any]:
        """Values that reading along has found."""
        return {
            var_id: variable["value"]
            for var_id, variable in self.memory().items()
            if variable["updatedBy"] == "convMiner" and variable["value"] is not None
        }

    def tool_writes(self, tool: str, var_id: str, value: object, **described: str) -> None:
        """`described` is what the model reads of a custom value."""
        entry = {"varId": var_id, "value": value, "updatedBy": tool, "contactId": self.contact}
        if described:
            entry["descriptionForLLM"] = [{"name": name, "value": text} for name, text in described.items()]
        _json(self.http.put(f"/v1/memory/{self.conversation}", json=[entry]))

    def moved(self, task: str) -> Any:
        reply = self.posted("change-task", task=task)
        assert reply["result"] is True, reply
        return reply

    def ended(self) -> Any:
        return self.posted("handle-end-contact", reason="hangup")

    def posted(self, path: str, **body: Any) -> Any:
        ids = {"contactId": self.contact, "conversationId": self.conversation}
        return _json(self.http.post(f"/v1/{path}", json={**ids, **body}))

    def _say(self, src: str, body: str) -> None:
        self.said += 1
        self.posted(
            "handle-utterance",
            messageId=f"{self.contact}-{self.said}",
            ts=SAID_AT,
            type="message",
            src=src,
            body=body,
        )


def _json(reply: httpx.Response) -> Any:
    assert reply.is_success, reply.text
    return reply.json()


@contextmanager
def scripted_openai(steps: Steps) -> Generator[FakeOpenAI]:
    """The fake server on a thread of its own, so that tests may block."""
    fake = FakeOpenAI(steps)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake.running()):
        yield fake


def model_settings(fake: FakeOpenAI, **more: str) -> dict[str, str]:
    """The service's environment with `fake` as its model."""
    return {
        "FLOW_ENGINE_LLM_MODEL": "openai:test",
        "OPENAI_BASE_URL": fake.base_url,
        "OPENAI_API_KEY": "scripted",
        **more,
    }


def answer_properties(received: Received) -> Mapping[str, Any]:
    """The properties of the object that a request asks for; none where it asks for text."""
    body = received.body
    if "response_format" in body:
        return body["response_format"]["json_schema"]["schema"]["properties"]
    return body["tools"][0]["function"]["parameters"]["properties"] if body.get("tools") else {}


def dialogue_of(received: Received) -> str:
    """What a request gives the model to read."""
    return str(received.body["messages"][-1]["content"])


@dataclass
class EventReceiver:
    """What a webhook has received, oldest first."""

    url: str
    events: list[Any] = field(default_factory=list[Any])

    def until(self, wanted: Callable[[Sequence[Any]], bool], within_s: float = 60.0) -> Sequence[Any]:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if wanted(self.events):
                return tuple(self.events)
            time.sleep(0.05)
        raise AssertionError(f"not among the events: {self.events}")


@contextmanager
def event_receiver() -> Generator[EventReceiver]:
    receiver = EventReceiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.events.append(orjson.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/events"
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            serving.join()

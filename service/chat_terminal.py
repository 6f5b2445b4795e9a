"""The chat in a terminal: talk to one that is running, or watch a dialogue on a scripted model."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

import orjson
import typer
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from adapters.models.scripted import CallsTools, Says, ScriptedModel, Step
from api.auth import LocalOnly
from channels.chat import tool
from channels.chat.app import SOCKET_PATH
from channels.chat.settings import ChatSettings
from channels.gateway.config import ADDRESSES, is_address
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.models import LLMRequest, ToolCall
from service.chat import chat_server, chat_service
from service.logs import configure_logging
from service.serving import served_here
from service.settings import Settings

USER: Final = "demo"
OPEN_WITHIN_S: Final = 10.0
"""Seconds."""

AGENTS: Final[Sequence[Mapping[str, object]]] = (
    {
        "name": "desk",
        "enabled": False,
        "constraints": ["Never promise what a tool has not done."],
        "rules": ["Ask when something is missing."],
    },
    {
        "name": "pizza_agent",
        "base_agent": "desk",
        "description": "Takes orders of pizza.",
        "task": "Take the order and place it.",
        "examples": ["I would like a pizza", "Two margheritas, please"],
        "tools": ["place_order"],
    },
    {
        "name": "hours_agent",
        "base_agent": "desk",
        "description": "Tells the opening hours.",
        "task": "Tell when the shop is open.",
        "examples": ["When are you open?", "Until when are you open on Sunday?"],
    },
)
LINES: Final = (
    "Hello, how are you?",
    "I would like a pizza",
    "a large one",
    "When are you open on Sunday?",
    "Can you repair my bicycle?",
)


@dataclass(slots=True)
class ChatClient:
    """One connection, text frames of JSON."""

    socket: ClientConnection
    session: str = ""

    async def send(self, **frame: Any) -> None:
        """Raises RetryLater `connection_lost`."""
        try:
            await self.socket.send(orjson.dumps(frame).decode())
        except ConnectionClosed as closed:
            raise _lost(closed) from None

    async def receive(self) -> dict[str, Any]:
        """The next frame, as JSON holds it. Raises RetryLater `connection_lost`."""
        try:
            return orjson.loads(await self.socket.recv())
        except ConnectionClosed as closed:
            raise _lost(closed) from None


@asynccontextmanager
async def chat_client(
    url: str, user: str, *, session: str | None = None, token: str | None = None, key: str | None = None
) -> AsyncGenerator[ChatClient]:
    """`url` is the URL of `flow-engine chat serve`, http or https. The welcome has been received. Raises
    CallTheOperator `chat_refused`: no address, not reached, or not with this credential."""
    if not is_address(url):
        raise CallTheOperator("chat_refused", f"the chat {url!r}: {ADDRESSES}")
    address = url.rstrip("/").replace("http", "ws", 1) + SOCKET_PATH + (f"?token={token}" if token else "")
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        opened = await connect(
            address, additional_headers=headers, open_timeout=OPEN_WITHIN_S, proxy=None, max_size=None
        )
    except (OSError, InvalidHandshake, TimeoutError, UnicodeError) as error:  # UnicodeError: of `a..b`
        raise CallTheOperator("chat_refused", f"no chat at {url}: {error}") from None
    async with opened:
        client = ChatClient(opened)
        await client.send(type="hello", user=user, session=session, after=None)
        welcome = await client.receive()
        if welcome["type"] == "error":
            raise CallTheOperator("chat_refused", welcome["content"]["message"])
        client.session = welcome["session"]
        yield client


def _lost(closed: ConnectionClosed) -> RetryLater:
    code = closed.rcvd.code if closed.rcvd else None
    return RetryLater("connection_lost", f"the connection is closed, code {code}")


@tool(approval="prompt")
def place_order(pizza: str, size: str) -> dict[str, str]:
    """Places an order in the kitchen."""
    return {"order": "17", "pizza": pizza, "size": size}


def demonstrate(*, as_json: bool) -> int:
    """Prints the dialogue, or with `as_json` every frame. Returns the exit code. One JSON object a line. A
    chat that cannot start raises FlowEngineError."""
    configure_logging("error")
    return asyncio.run(_demonstrated(as_json))


def talk(url: str, user: str, *, session: str | None, token: str | None, key: str | None) -> int:
    """Lines from standard input until its end. Raises FlowEngineError where no chat can be had. `url` is
    http:// or https://, as a URL of `chat serve`."""
    return asyncio.run(_talked(url, user, session, token, key))


async def _demonstrated(as_json: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), llm_model=None, redis_url=None, mongo_url=None)
        chat = ChatSettings(tool_modules=__name__)
        model = ScriptedModel(_scripted)
        async with chat_service(settings, chat, LocalOnly(), model=model) as service:
            for row in AGENTS:
                await service.table.create("default", cast("Any", dict(row)), "demo")
            async with (
                served_here(chat_server(service.app)) as address,
                chat_client(f"http://{address}", USER) as client,
            ):
                for number, line in enumerate(LINES, start=1):
                    await _exchange(client, f"m-{number}", line, as_json, lambda: "yes")
    return 0


def _scripted(request: LLMRequest) -> Step:
    """What a model would do: by the last message, and by what it was asked before."""
    last, system = request.messages[-1], request.messages[0].content
    if last.role == "tool":
        return Says("Order 17 is in the oven: a large margherita, in twenty minutes.")
    if "Place" in system or "place it" in system:
        if "large" in last.content:
            arguments = {"pizza": "margherita", "size": "large"}
            return CallsTools([ToolCall("1", "place_order", cast("Any", arguments))])
        return CallsTools([ToolCall("1", "ask_user", {"question": "Which size: small or large?"})])
    if "when the shop is open" in system:
        return Says("On Sunday from noon to ten in the evening.")
    return Says("Fine, thank you! What can I do for you?")


async def _talked(url: str, user: str, session: str | None, token: str | None, key: str | None) -> int:
    async with chat_client(url, user, session=session, token=token, key=key) as client:
        typer.echo(f"Session {client.session}. An empty line ends it.", err=True)
        while line := (await _asked("> ")).strip():
            try:
                await _exchange(client, uuid4().hex, line, False, None)
            except RetryLater as lost:
                typer.echo(f"\n{lost.detail}; go on with --session {client.session}", err=True)
                return 1
    return 0


async def _exchange(
    client: ChatClient, message_id: str, line: str, as_json: bool, confirm: Callable[[], str] | None
) -> None:
    """One message and its answer, printed while it comes."""
    if confirm is not None and not as_json:
        typer.echo(f"> {line}")
    await client.send(type="message", id=message_id, content=line)
    while True:
        frame = await client.receive()
        content = frame["content"]
        match frame["type"]:
            case _ if as_json:
                typer.echo(orjson.dumps(frame).decode())
            case "dialogue":
                typer.echo(content, nl=False)
            case "action":
                typer.secho(f"[{content['tool']}: {content['status']}]", dim=True)
            case "error":
                typer.secho(f"[{content['code']}: {content['message']}]", fg="red")
            case "state" if content["event"] == "approval":
                typer.secho(f"[{content['message']}]", dim=True)
            case "state" if content.get("cut"):
                typer.secho("\n[cut at the token limit]", dim=True)
            case _:
                pass
        if frame["final"] and not as_json:
            who = f"{frame.get('agent') or 'orchestrator'}, {frame['state']}"
            typer.secho(f"\n    ({who})", dim=True)
        if frame["type"] == "action" and content["status"] == "waiting":
            decision = confirm() if confirm else await _asked(f"run {content['tool']}? (yes/no) ")
            decision = "yes" if decision.strip().lower() in ("y", "yes") else "no"
            await client.send(type="confirm", call=content["call"], decision=decision)
        if frame["final"] and frame["id"] == message_id:
            return
        if frame["type"] == "error" and frame["seq"] is None:
            return


async def _asked(prompt: str) -> str:
    """A line of standard input, empty at its end."""
    try:
        return await asyncio.to_thread(input, prompt)
    except EOFError:
        return ""

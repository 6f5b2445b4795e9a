"""One turn of the assistant: the dialogue so far, the tool loop, and everything stored as it happens (W8,
W10).

Frames go out while it runs:

    {"content": text}
    {"tool": {call, name, arguments, status: running | done | failed | rejected, result?}}
    {"error": {code, message}}

`call` is the id of the step; `undo` takes it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast
from uuid import uuid4

import orjson
from cachetools import LRUCache
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.models.answers import estimated_tokens
from adapters.models.loop import MAX_ITERATIONS, LoopResult, ToolFinished, ToolStarted, tool_loop, unanswered
from adapters.models.tools import USER_REJECTED
from channels.workspace import confinement, files, index, shell
from channels.workspace.rules import Rules
from channels.workspace.store import FOLDER, Store
from channels.workspace.toolbox import Person, Toolbox
from flow_engine.errors import CallTheOperator
from flow_engine.ports import models

PROMPTS: Final = Path(__file__).parent / "prompts"
LONGEST_ANSWER: Final = 8_192
FULL: Final = 0.75
KEPT_TURNS: Final = 2
MOST_TOOLBOXES: Final = 1_000

Frame = Mapping[str, Any]
Emit = Callable[[Frame], Awaitable[None]]
Language = Literal["en", "fr", "it", "es"]


class WorkspaceSettings(BaseSettings):
    """Settings of `flow-engine workspace`, by the environment with the prefix `FLOW_ENGINE_`."""

    model_config = SettingsConfigDict(
        env_prefix="FLOW_ENGINE_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    workspace_rules: Path = Field(
        default=Path("~/.agentichat/rules.toml"), description="The operator's rules about tools, TOML"
    )
    workspace_sandbox: shell.Sandbox = Field(
        default="off",
        description="Commands: as they are, without a network, or confined to the workspace too",
    )
    workspace_language: Language = Field(default="en", description="Language of the system prompt")
    workspace_context_tokens: int = Field(
        default=32_000,
        ge=1_000,
        description="Tokens of the model's context; beyond three quarters, older turns are summed up",
    )
    workspace_embedding_model: str | None = Field(
        default=None, description="Model of search_semantic; unset: by words alone"
    )
    workspace_model: str | None = Field(default=None, description="Model where --model names none")
    gateway_url: str | None = Field(
        default=None, description="The gateway that the assistant asks; unset: one in its own process"
    )
    gateway_key: SecretStr | None = Field(default=None, description="The key for that gateway")


class TurnFailed(Exception):
    """The model failed and gave no answer. `code` is the reason, `iterations` how often it was asked; an
    answer has at most 8,192 tokens."""

    def __init__(self, code: str, message: str, turn: str, iterations: int) -> None:
        super().__init__(message)
        self.code = code
        self.turn = turn
        self.iterations = iterations


class MaxIterationsExceeded(TurnFailed):
    """The loop ended before the task did. `done` names what was done."""

    def __init__(self, iterations: int, done: Sequence[str], turn: str) -> None:
        listed = "; ".join(done[-20:]) or "nothing"
        message = f"stopped after {iterations} iterations, before the task was done; so far: {listed}"
        super().__init__("max_iterations_exceeded", message, turn, iterations)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A turn that was completed. `tools` are the frames of its calls, results included."""

    session: str
    turn: str
    content: str
    iterations: int
    tools: tuple[Mapping[str, Any], ...]


class Workspace:
    """A directory with its database, tools and sessions. To be closed. Raises CallTheOperator where it cannot
    be used."""

    def __init__(
        self, path: Path, settings: WorkspaceSettings, rules: Rules, embedder: index.Embedder | None = None
    ) -> None:
        try:
            self.root = confinement.Root(path)
        except OSError as error:
            raise CallTheOperator("workspace_unusable", f"{path}: {error.strerror}") from error
        with ExitStack() as undo:
            undo.callback(self.root.close)
            self.store = Store(self.root)
            undo.pop_all()
        self.index = index.Index(self.root, self.store, embedder)
        self.settings = settings
        self._rules = rules
        self._shell = shell.Shell(self.root, settings.workspace_sandbox)
        # What a session was granted, and has read: of one that was long ago it is asked again.
        self._toolboxes: LRUCache[str, Toolbox] = LRUCache(MOST_TOOLBOXES)

    def close(self) -> None:
        self.store.close()
        self.root.close()

    def toolbox(self, session: str) -> Toolbox:
        parts = (self.root, self.store, self._shell, self.index, self._rules, session)
        return self._toolboxes.setdefault(session, Toolbox(*parts))

    def system_prompt(self) -> str:
        """The rules in the language of the settings, then the operator's own for this project."""
        text = (PROMPTS / f"{self.settings.workspace_language}.md").read_text("utf-8")
        with suppress(OSError, confinement.Outside, confinement.Refused):
            own = self.root.read(f"{FOLDER}/instructions.md", 100_000).data.decode("utf-8", "replace")
            text += f"\n<operator_instructions>\n{own.strip()}\n</operator_instructions>\n"
        return text

    def resume(self, session: str) -> list[models.Message]:
        """The dialogue so far. Calls that were never answered are, as `INTERRUPTED`, so that it is valid."""
        summary = self.store.session(session).metadata
        stored = self.store.messages(session, int(summary.get("summary_upto", 0)))
        messages = [each.message for each in stored]
        open_calls = unanswered(messages) if messages and messages[-1].role in ("assistant", "tool") else ()
        for call in open_calls:
            result = files.failure(
                "INTERRUPTED", "the program ended before this call did; it may have been run"
            )
            answer = models.Message("tool", orjson.dumps(result).decode(), tool_call_id=call.id)
            self.store.add(session, stored[-1].turn, answer, call.name)
            messages.append(answer)
        if "summary" in summary:
            messages.insert(
                0, models.Message("user", f"[Summary of the dialogue so far]\n{summary['summary']}")
            )
        return messages


class _Turn:
    def __init__(self, workspace: Workspace, session: str, emit: Emit) -> None:
        self.workspace = workspace
        self.session = session
        self.id = f"t{uuid4().hex[:10]}"
        self.emit = emit
        self.tools: list[Mapping[str, Any]] = []
        self.done: list[str] = []
        self.tokens = 0
        self.streamed = False

    def store(self, message: models.Message, tool_name: str | None = None) -> None:
        self.workspace.store.add(self.session, self.id, message, tool_name)

    async def take(self, event: object, step: str) -> None:
        """Store what an event of the loop is, and show it."""
        match event:
            case models.TextDelta(text):
                self.streamed = True
                await self.emit({"content": text})
            case models.LLMAnswer():
                self.store(event.message)
                self.tokens = event.input_tokens + event.output_tokens
                if event.text and not self.streamed:
                    await self.emit({"content": event.text})
                self.streamed = False
            case ToolStarted(call):
                await self.emit({"tool": self._frame(step, call.name, call.arguments, "running")})
            case ToolFinished():
                self.store(event.message, event.call.name)
                result = cast("Mapping[str, Any]", event.record.result)  # of these tools always an object
                refused = result.get("error") in (USER_REJECTED, "FORBIDDEN")
                status = "done" if result.get("success") is True else "rejected" if refused else "failed"
                frame = self._frame(step, event.call.name, event.call.arguments, status)
                frame["result"] = result
                self.tools.append(frame)
                if event.executed:
                    subject = event.call.arguments.get("command", event.call.arguments.get("path", ""))
                    self.done.append(f"{event.call.name} {subject} ({status})")
                await self.emit({"tool": frame})
            case _:
                pass

    @staticmethod
    def _frame(step: str, name: str, arguments: Mapping[str, Any], status: str) -> dict[str, Any]:
        return {"call": step, "name": name, "arguments": dict(arguments), "status": status}


async def run_turn(
    workspace: Workspace,
    model: models.LanguageModel,
    session: str,
    prompt: str,
    person: Person,
    emit: Emit,
    *,
    max_iterations: int = MAX_ITERATIONS,
) -> TurnResult:
    """Raises MaxIterationsExceeded, TurnFailed; what was done until then is stored."""
    await _shortened(workspace, model, session)
    turn = _Turn(workspace, session, emit)
    dialogue = workspace.resume(session)
    asked = models.Message("user", prompt)
    turn.store(asked)
    if not workspace.store.session(session).metadata.get("title"):
        workspace.store.describe(session, title=prompt.strip().splitlines()[0][:80] if prompt.strip() else "")
    toolbox = workspace.toolbox(session)
    request = models.LLMRequest(
        (models.Message("system", workspace.system_prompt()), *dialogue, asked),
        max_tokens=LONGEST_ANSWER,
        deltas=True,
        purpose="workspace",
    )
    result: LoopResult | None = None
    tools = toolbox.begin(turn.id, person)
    async with aclosing(tool_loop(model, request, tools, max_iterations)) as events:
        async for event in events:
            if isinstance(event, LoopResult):
                result = event
            await turn.take(event, toolbox.step)
    assert result is not None
    workspace.store.describe(session, input_tokens=turn.tokens)
    if result.status == "error":
        code, _, detail = (result.error or "").partition(": ")
        raise TurnFailed(code, f"the model failed: {detail}", turn.id, result.iterations)
    if result.status != "completed":
        raise MaxIterationsExceeded(result.iterations, turn.done, turn.id)
    return TurnResult(session, turn.id, result.final_message or "", result.iterations, tuple(turn.tools))


async def _shortened(workspace: Workspace, model: models.LanguageModel, session: str) -> None:
    """Sum up all but the last turns where the context fills, by the usage that the server sent, in tokens;
    where it tells none, by the characters of the dialogue."""
    metadata = workspace.store.session(session).metadata
    limit = FULL * workspace.settings.workspace_context_tokens
    stored = workspace.store.messages(session, int(metadata.get("summary_upto", 0)))
    estimated = estimated_tokens(sum(len(each.message.content) for each in stored))
    if (int(metadata.get("input_tokens", 0)) or estimated) < limit:
        return
    turns = list(dict.fromkeys(each.turn for each in stored))
    old = [each for each in stored if each.turn not in turns[-KEPT_TURNS:]]
    if not old:
        return
    earlier = str(metadata.get("summary", ""))
    text = "\n".join(f"{each.message.role}: {each.message.content[:2_000]}" for each in old)
    instruction = (
        "Sum up this dialogue of a developer with an assistant, for the assistant: the task, decisions, "
        "files that were changed and how, what is still open. Facts only, at most 400 words."
    )
    request = models.LLMRequest(
        (
            models.Message("system", instruction),
            models.Message("user", f"{earlier}\n{text}"[-4 * int(limit) :]),
        ),
        max_tokens=1_500,
        purpose="workspace_summary",
    )
    with suppress(models.ModelFailed):  # the turn itself will say what is wrong with the model
        answer = await models.ask(model, request)
        workspace.store.describe(session, summary=answer.text, summary_upto=old[-1].id, input_tokens=0)

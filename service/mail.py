"""`flow-engine mail check | explain | process`: a config and single mails, without a mailbox."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast
from uuid import uuid4

import orjson
import typer

from adapters.models.factory import ConnectedModel, NamedModels, build_model
from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.http_tools.json_schema import ConfigSchema, schema_of
from channels.mail import loading, memory_mailbox, message, ports, preprocessing, processing, routing
from channels.mail.config import SCHEMA_ID, MailboxConfig, MailConfig
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.clock import SystemClock
from flow_engine.values import JsonValue
from service.logs import StandardError, configure_logging
from service.settings import Settings, read_settings

RUN_FAILED, UNREADABLE = 1, 2
SHOWN = 160
"""Characters of arguments and results in lines for people."""


def check(path: Path) -> int:
    """0 for a config that can be run; else 2, with every mistake printed."""
    try:
        loading.load_config(path)
    except CorrectTheInput as refused:
        for finding in refused.findings:
            typer.echo(f"{path}: error at {finding.pointer or '/'}: {finding.message}")
        return UNREADABLE
    typer.echo(f"{path}: no mistakes")
    return 0


def print_schema() -> None:
    schema = schema_of(MailConfig, ConfigSchema, SCHEMA_ID, "Mail agent config")
    typer.echo(orjson.dumps(schema, option=orjson.OPT_INDENT_2))


def explain(path: Path, files: Sequence[Path], *, as_json: bool, mailbox: str | None) -> int:
    """0, or 2 for a file that cannot be read. Raises CorrectTheInput for a config with mistakes."""
    loaded = loading.load_config(path)
    box, unread = _mailbox(loaded.config, mailbox), 0
    for file, mail in _mails(files, loaded.config):
        if mail is None:
            unread = UNREADABLE
            continue
        explanation = _explained(file, loaded, mail, routing.judge(loaded.config, box, mail))
        typer.echo(orjson.dumps(explanation) if as_json else _in_lines(explanation))
    return unread


def process(path: Path, files: Sequence[Path], *, as_json: bool, mailbox: str | None) -> int:
    """0; 1 where a run ended with an error; 2 for a file that cannot be read. Raises CorrectTheInput for a
    config with mistakes, CallTheOperator for settings that cannot be used."""
    settings, loaded = read_settings(Settings), loading.load_config(path)
    configure_logging(settings.log_level, to=StandardError)
    box = _mailbox(loaded.config, mailbox)
    return asyncio.run(_process(settings, loaded, box, files, as_json=as_json))


async def _process(
    settings: Settings,
    loaded: loading.LoadedConfig,
    box: MailboxConfig,
    files: Sequence[Path],
    *,
    as_json: bool,
) -> int:
    model, outbound = mail_model(settings), mail_outbound(settings, loaded.config)
    code = 0
    try:
        for file, mail in _mails(files, loaded.config):
            if mail is None:
                code = UNREADABLE
                continue
            trial = Trial(loaded, box, model, settings.llm_model is not None, outbound)
            judgement = routing.judge(loaded.config, box, mail)
            outcome = await trial.run(mail, judgement)
            explanation = {**_explained(file, loaded, mail, judgement), **trial.report(outcome)}
            typer.echo(orjson.dumps(explanation) if as_json else _in_lines(explanation))
            if outcome.status == "error":
                code = code or RUN_FAILED
    finally:
        await outbound.aclose()
        await model.aclose()
    return code


def mail_model(settings: Settings) -> ConnectedModel:
    """The installation's model for every profile; without one, those that the profiles name."""

    def built(name: str | None = None) -> ConnectedModel:
        return build_model(settings, SystemClock(), named=name, retry_unusable=True)

    return built() if settings.llm_model else NamedModels(built)


def mail_outbound(settings: Settings, config: MailConfig) -> GuardedClient:
    """What HTTP tools may call: public addresses, those of the operator's list, and `base_url` (F45)."""
    return GuardedClient(AllowList.parse(settings.outbound_allow, config.base_url))


class Trial:
    """One mail through the agent, with a mailbox that is only remembered."""

    def __init__(
        self,
        loaded: loading.LoadedConfig,
        box: MailboxConfig,
        model: ConnectedModel,
        overrides_model: bool,
        outbound: GuardedClient,
    ) -> None:
        self.mailbox = memory_mailbox.MemoryMailbox()
        self.journal = memory_mailbox.MemoryJournal()
        self._parts = processing.RunParts(
            loaded=loaded,
            box=box,
            model=model,
            overrides_model=overrides_model,
            mailbox=self.mailbox,
            journal=self.journal,
            allowance=memory_mailbox.MemoryAllowance(loaded.config.limits),
            outbound=outbound,
            clock=SystemClock(),
            monotonic=time.monotonic,
        )

    async def run(self, mail: message.ParsedMail, judgement: routing.Judgement) -> ports.RunOutcome:
        return await processing.process_message(processing.MailRun(uuid4().hex, mail, judgement), self._parts)

    def report(self, outcome: ports.RunOutcome) -> dict[str, JsonValue]:
        """What `process` prints of it; `waiting` are the calls that would wait for a person."""
        reasons = {event.facts.get("message_id"): event.facts.get("reason") for event in self.journal.events}
        outbox: list[JsonValue] = []
        for action, mail in self.mailbox.outbox:
            line: dict[str, JsonValue] = {
                "action": action,
                "to": list[JsonValue](mail.recipients),
                "subject": mail.subject,
                "text": mail.text,
            }
            reason = reasons.get(mail.message_id)
            outbox.append(line if reason is None else {**line, "reason": reason})
        calls: list[JsonValue] = [
            {
                "tool_name": line.tool,
                "arguments": line.arguments,
                "result": line.result,
                "iteration": line.iteration,
            }
            for line in outcome.progress.tool_calls
        ]
        explanation: dict[str, JsonValue] = {
            "status": outcome.status if self.journal.calls or outcome.status == "error" else None,
            "tool_calls": calls,
            "label": outcome.label,
            "outbox": outbox,
            "final_message": outcome.final_message,
            "iterations": outcome.progress.iterations,
            "error": outcome.error,
        }
        if outcome.status == "waiting":
            explanation["waiting"] = [
                {"tool": each.tool, "arguments": each.arguments} for each in outcome.progress.waiting
            ]
        return explanation


# --- files and what is printed ---------------------------------------------------------------------


def _mails(files: Sequence[Path], config: MailConfig) -> Iterator[tuple[Path, message.ParsedMail | None]]:
    """Each file's mail; None, after a line on standard error, for one that cannot be read."""
    most = config.limits.max_message_bytes
    for path in files:
        try:
            with path.open("rb") as file:
                raw = file.read(most)
                yield path, message.parse_mail(raw, size=max(len(raw), path.stat().st_size))
        except OSError as error:
            typer.echo(f"{path}: cannot be read: {error.strerror or error}", err=True)
            yield path, None


def _mailbox(config: MailConfig, name: str | None) -> MailboxConfig:
    found = [box for box in config.every_mailbox if name is None or box.name == name]
    if not found:
        names = ", ".join(box.name for box in config.every_mailbox)
        raise CorrectTheInput("mailbox_unknown", f"no mailbox {name!r}; accepted are {names}")
    return found[0]


def _explained(
    file: Path, loaded: loading.LoadedConfig, mail: message.ParsedMail, judgement: routing.Judgement
) -> dict[str, JsonValue]:
    profile = loaded.config.agent.profiles.get(judgement.profile or "")
    preprocess = loaded.preprocessors["default" if profile is None else profile.preprocessor]
    rules: list[JsonValue] = []
    for verdict in judgement.verdicts:
        line: dict[str, JsonValue] = {"name": verdict.name, "matched": verdict.matched, "why": verdict.why}
        rules.append(line if verdict.signal is None else {**line, "signal": verdict.signal})
    return {
        "file": typer.format_filename(file),
        "rule": judgement.rule,
        "route": judgement.route,
        "profile": judgement.profile,
        "trust": "authenticated" if judgement.is_authenticated else "spoofable",
        "send": "allow" if judgement.sends and judgement.route == "agent" else "draft",
        "automatic": judgement.automatic,
        "rules": rules,
        "reads": preprocessing.reads(mail, preprocess),
    }


def _in_lines(explanation: Mapping[str, JsonValue]) -> str:
    lines = [f"{explanation['file']}"]
    for name, value in explanation.items():
        if isinstance(value, list) and value:
            lines.append(f"  {name}:")
            lines += [line for each in value for line in item_lines(cast("dict[str, JsonValue]", each))]
        elif isinstance(value, str) and "\n" in value:
            lines.append(f"  {name}:")
            lines += [f"    {line}" for line in value.split("\n")]
        elif name != "file":
            shown = "none" if value in (None, []) else value
            lines.append(f"  {name}: {shown}")
    return "\n".join(lines)


def item_lines(each: Mapping[str, JsonValue]) -> list[str]:
    """A rule's verdict, a call of a tool, or a mail that would go out, as `explain` and `process` print it:
    lines of text."""
    if "matched" in each:
        return [f"    {'✓' if each['matched'] else '✗'} {each['name']}: {each['why']}"]
    if "action" in each:
        to = ", ".join(map(str, cast("list[JsonValue]", each["to"])))
        because = f" ({each['reason']})" if "reason" in each else ""
        text = str(each["text"]).strip().split("\n")
        return [
            f"    {each['action']} to {to}: {each['subject']}{because}",
            *(f"      | {line}" for line in text),
        ]
    number = f"{each['iteration']}. " if "iteration" in each else ""
    call = f"    {number}{each.get('tool_name', each.get('tool'))}({_shortened(each['arguments'])})"
    return [call, f"       → {_shortened(each['result'])}"] if "result" in each else [call]


def _shortened(value: JsonValue) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"

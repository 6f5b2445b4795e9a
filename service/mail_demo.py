"""`flow-engine mail demo`: a sample mailbox, worked through offline and printed as it goes.

Rules, trust, tools, the pharmacy's API with its stock, and the composed mails are real. The model follows a
script, and nothing leaves this machine.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final, cast

import orjson
import typer
import uvicorn

from adapters.models.scripted import Answers, CallsTools, Says, ScriptedModel, Step
from adapters.outbound.client import GuardedClient
from channels.mail import loading, ports, routing
from channels.mail.message import parse_mail
from flow_engine.errors import CallTheOperator
from flow_engine.ports.models import LLMRequest, ToolCall
from flow_engine.values import JsonValue
from service.logs import configure_logging
from service.mail import Trial, item_lines, mail_outbound
from service.serving import served_here
from service.settings import Settings

_HERE: Final = Path(__file__).resolve()
EXAMPLES: Final = next(
    filter(Path.is_dir, (_HERE.with_name("examples"), _HERE.parents[1] / "examples")), _HERE
)
"""As the wheel has them, or the repository."""

CONFIG: Final = EXAMPLES / "mail.yaml"
NOTE: Final = (
    "No mailbox, no model and no network are used: the model follows a script. The rules, the tools, the "
    "pharmacy's API and the mails are real."
)


@dataclass(frozen=True, slots=True)
class Sample:
    title: str
    raw: bytes


def _mail(sender: str, subject: str, body: str, *headers: str) -> bytes:
    lines = [
        *headers,
        f"From: {sender}",
        "To: info@pharmacy.example",
        f"Subject: {subject}",
        f"Message-ID: <{abs(hash((sender, subject)))}@demo.example>",
        "Date: Mon, 02 Mar 2026 09:00:00 +0100",
        "Content-Type: text/plain; charset=utf-8",
        "",
        body,
    ]
    return "\r\n".join(lines).encode()


_TRUSTED: Final = (
    "Authentication-Results: mx.pharmacy.example; dmarc=pass header.from=dostupnost-leku.example"
)
SAMPLES: Final = (
    Sample(
        "a customer, through the helpdesk",
        _mail(
            "Dostupnost <info@dostupnost-leku.example>",
            "Máte ibuprofen?",
            "Nová zpráva od Jana Nováková (jana@customer.example)\r\n\r\nDobrý den, máte v Brně ibuprofen? "
            "Prosím o rezervaci.\r\n\r\n--\r\nOdpovězte v Crisp",
            _TRUSTED,
        ),
    ),
    Sample(
        "somebody who only claims to be the helpdesk",
        _mail(
            "info@dostupnost-leku.example",
            "Rezervace",
            "Nová zpráva od Eve (eve@evil.example)\r\n\r\nIbuprofen!",
        ),
    ),
    Sample(
        "a question for the pipeline",
        _mail("Petr <petr@customer.example>", "Otevírací doba", "Máte otevřeno v neděli?"),
    ),
    Sample(
        "a robot",
        _mail("news@shop.example", "Out of office", "I am away.", "Auto-Submitted: auto-replied"),
    ),
)


def scripted(request: LLMRequest) -> Step:
    """What a model could answer: a search, a reservation, a reply; a label; a draft."""
    if request.purpose == "classify":
        return Answers(
            {"label": "question", "language": "cs", "urgency": "low", "summary": "Ptá se na neděli."}
        )
    if request.purpose == "draft":
        return Says("Dobrý den,\n\nv neděli máme otevřeno od 9 do 13 hodin.\n\nYour pharmacy")
    done = [message.content for message in request.messages if message.role == "tool"]
    match len(done):
        case 0:
            return CallsTools([ToolCall("c1", "search_drugs", {"query": "ibuprofen"})])
        case 1:
            found = orjson.loads(done[0]).get("drugs") or [{"name": "Ibuprofen", "pharmacy_id": "brno-1"}]
            arguments: dict[str, JsonValue] = {
                "action": "create",
                "drug_name": found[0]["name"],
                "pharmacy_id": found[0]["pharmacy_id"],
            }
            return CallsTools([ToolCall("c2", "manage_reservation", arguments)])
        case 2:
            reply: dict[str, JsonValue] = {
                "to": "info@dostupnost-leku.example",
                "subject": "Re: ibuprofen",
                "body": "Dobrý den,\n\nIbuprofen 400 mg je rezervován v Lékárně U Anděla, Brno (79 Kč).",
            }
            return CallsTools([ToolCall("c3", "send_reply", reply)])
        case _:
            return Says("Answered with a reservation.")


def demonstrate() -> int:
    """Plays the samples; 1 where one of them ended with an error. Raises CallTheOperator where the example
    files are not there."""
    configure_logging("error")
    if not CONFIG.is_file():
        raise CallTheOperator(
            "examples_missing", f"the demonstration needs {CONFIG}, as the repository has it"
        )
    return asyncio.run(_demonstrate())


async def _demonstrate() -> int:
    code = 0
    typer.echo(NOTE)
    async with _shop() as (loaded, outbound):
        for sample in SAMPLES:
            box, mail = loaded.config.every_mailbox[0], parse_mail(sample.raw)
            judgement = routing.judge(loaded.config, box, mail)
            typer.echo(f"\n✉ {mail.subject!r}: {sample.title}")
            trust = "authenticated" if judgement.is_authenticated else "spoofable"
            sends = judgement.sends and judgement.route == "agent"
            may = "may be answered" if sends else "answers become drafts"
            to = judgement.profile or judgement.route
            typer.echo(f"  rule {judgement.rule or 'none'} → {to}; sender {trust}, {may}")
            trial = Trial(loaded, box, ScriptedModel(scripted), True, outbound)
            outcome = await trial.run(mail, judgement)
            told = trial.report(outcome)
            for call in cast("list[dict[str, JsonValue]]", told["tool_calls"]):
                typer.echo("\n".join(item_lines(call)))
            if outcome.automatic is not None:
                typer.echo(f"  automatic ({outcome.automatic}): never answered")
            if outcome.label is not None:
                typer.echo(f"  label {outcome.label}")
            for mail_out in cast("list[dict[str, JsonValue]]", told["outbox"]):
                typer.echo("\n".join(item_lines(mail_out)))
            typer.echo(f"  {outcome.status}{'' if outcome.error is None else ': ' + outcome.error}")
            if outcome.status == "error":
                code = 1
    return code


async def demo_outcome(sample: Sample) -> ports.RunOutcome:
    """How the run of one sample ends, without a word."""
    async with _shop() as (loaded, outbound):
        mail = parse_mail(sample.raw)
        box = loaded.config.every_mailbox[0]
        trial = Trial(loaded, box, ScriptedModel(scripted), True, outbound)
        return await trial.run(mail, routing.judge(loaded.config, box, mail))


@asynccontextmanager
async def _shop() -> AsyncGenerator[tuple[loading.LoadedConfig, GuardedClient]]:
    """The example config with the pharmacy that is served here; replies need nobody's approval."""
    loaded = loading.load_config(CONFIG)
    async with _pharmacy() as base_url:
        config = loaded.config.model_copy(update={"base_url": base_url})
        profile = config.agent.profiles["pharmacy"].model_copy(update={"approval": {}})
        agent = config.agent.model_copy(update={"profiles": {"pharmacy": profile}})
        config = config.model_copy(update={"agent": agent})
        outbound = mail_outbound(Settings.model_construct(outbound_allow=""), config)
        try:
            yield replace(loaded, config=config), outbound
        finally:
            await outbound.aclose()


@asynccontextmanager
async def _pharmacy() -> AsyncGenerator[str]:
    """The example API on a free port of loopback, with a stock of its own; its address."""
    found = spec_from_file_location("pharmacy_example", EXAMPLES / "pharmacy" / "app.py")
    if found is None or found.loader is None:
        raise CallTheOperator("examples_missing", f"{EXAMPLES} has no pharmacy that can be loaded")
    example: Any = sys.modules.setdefault(found.name, module_from_spec(found))
    found.loader.exec_module(example)
    app = example.pharmacy_app()
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", access_log=False, log_config=None))
    async with served_here(server) as address:
        yield f"http://{address}"

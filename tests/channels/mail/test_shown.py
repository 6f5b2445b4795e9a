"""Everything at once and real: Dovecot, an SMTP server, the engine, the pharmacy's API with its stock, and
`flow-engine mail serve` as a process, on a scripted model behind OpenAI's protocol."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapters.models.fake_http import Received
from adapters.models.fake_openai import FakeOpenAI, WireStep
from adapters.models.scripted import Answers, CallsTools, Says
from channels.engine_client.client import Contact, EngineClient, FlowChoice, NewContact, engine_http
from channels.engine_client.replies import AgentData
from channels.mail.message import ParsedMail, parse_mail
from flow_engine.ports.models import ToolCall
from tests.channels.mail.dovecot import PASSWORD, Dovecot
from tests.channels.mail.smtp_server import SmtpServer
from tests.channels.mail.world import World, environment, until
from tests.channels.mail.world import config as simple_config
from tests.channels.mail.world import mail as simple_mail
from tests.ports import free_port
from tests.service_process import running_service

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
HELPDESK = "info@dostupnost-leku.example"
PATIENT_S = 120.0
AUTHENTICATED = "Authentication-Results: mx.pharmacy.example; dmarc=pass header.from=dostupnost-leku.example"


def mail(name: str, sender: str, subject: str, body: str, *headers: str) -> bytes:
    lines = [
        *headers,
        f"From: {sender}",
        "To: info@pharmacy.example",
        f"Subject: {subject}",
        f"Message-ID: <{name}@mails.example>",
        "Date: Mon, 04 May 2026 09:00:00 +0200",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Transfer-Encoding: 8bit",
        "",
        *body.split("\n"),
        "",
    ]
    return "\r\n".join(lines).encode()


def crisp(question: str) -> str:
    return f"Nová zpráva od Jana Nováková (jana@customer.example)\n\n{question}\n\n--\nOdpovězte v Crisp"


MAILS = (
    mail(
        "reserve", HELPDESK, "Máte ibuprofen?", crisp("Dobrý den, máte v Brně ibuprofen? Prosím rezervovat.")
    ),
    mail("hours", "Petr <petr@customer.example>", "Otevírací doba", "Máte otevřeno v neděli?"),
    mail(
        "price",
        HELPDESK,
        "Cena paralenu",
        crisp("Kolik stojí paralen?"),
        AUTHENTICATED,
        "References: <before@mails.example>",
    ),
    mail("complaint", "Eva <eva@customer.example>", "Reklamace", "Chci mluvit s člověkem."),
)


def model(received: Received) -> WireStep:
    """What a model could answer to each of the mails."""
    messages: Sequence[Mapping[str, Any]] = received.body["messages"]
    read = next(str(each["content"]) for each in messages if each["role"] == "user")
    if "response_format" in received.body:
        found = {"label": "question", "language": "cs", "urgency": "low", "summary": "Ptá se na neděli."}
        return Answers(found)
    if not received.body.get("tools"):
        return Says("Dobrý den,\n\nv neděli máme otevřeno od 9 do 13 hodin.")
    letter = {"to": HELPDESK, "subject": "Re: Lék", "body": "Dobrý den,\n\nlék máme."}
    steps: dict[str, list[WireStep]] = {
        "ibuprofen": [
            CallsTools([ToolCall("c1", "search_drugs", {"query": "ibuprofen"})]),
            CallsTools(
                [
                    ToolCall(
                        "c2",
                        "manage_reservation",
                        {"action": "create", "drug_name": "Ibuprofen 400 mg", "pharmacy_id": "brno-1"},
                    )
                ]
            ),
            CallsTools([ToolCall("c3", "create_draft", letter)]),
        ],
        "paralen": [CallsTools([ToolCall("c1", "send_reply", letter)])],
        "člověkem": [CallsTools([ToolCall("c1", "escalate", {"reason": "wants a person"})])],
    }
    mine = next(each for word, each in steps.items() if word in read)
    answered = sum(each["role"] == "tool" for each in messages)
    return mine[answered] if answered < len(mine) else Says("Hotovo.")


def config(dovecot: Dovecot, user: str, smtp: SmtpServer, shop: str, engine_url: str) -> dict[str, Any]:
    """The example config with the servers of this test, and a rule for complaints with a flow behind it."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / "mail.yaml").read_text())
    imap = {"host": "localhost", "port": dovecot.port, "tls": "none", "user": user}
    document["mailbox"] |= {
        "name": user,
        "imap": {**imap, "password_env": "MAIL_PASSWORD"},
        "smtp": {"host": "localhost", "port": smtp.port, "tls": "none"},
    }
    document["base_url"] = shop
    profiles: dict[str, Any] = document["agent"]["profiles"]
    profiles["pharmacy"]["system_prompt_file"] = str(EXAMPLES / "pharmacy" / "prompt.txt")
    flow = {"engine_url": engine_url, "flow_id": "claim", "tag": "prod"}
    profiles["claims"] = {
        "system_prompt_file": profiles["pharmacy"]["system_prompt_file"],
        "tools": ["escalate"],
        "flow": flow,
    }
    rule = {
        "name": "claims",
        "match": {"subject_contains": "reklamace"},
        "route": "agent",
        "profile": "claims",
    }
    document["routing"]["rules"].insert(0, rule)
    return document


@asynccontextmanager
async def process(*arguments: str, **environment: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A program of this checkout, killed in the end if it is still there. Its output is one."""
    running = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


async def answering(url: str, process: subprocess.Popen[bytes]) -> None:
    async def is_there() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            async with httpx.AsyncClient() as http:
                return (await http.get(url)).status_code == 200
        except httpx.TransportError:
            return False

    await until(is_there, within_s=PATIENT_S)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The engine's address and its data directory, which the mail agent shares."""
    folder = tmp_path_factory.mktemp("engine")
    with running_service(folder) as url:
        yield url, folder


async def test_the_pharmacy_its_pipeline_a_reply_and_an_escalation_all_real(  # M2, M6, M11, M13, M14
    engine: tuple[str, Path],
    dovecot: Dovecot,
    smtp: SmtpServer,
    new_user: Callable[[], str],
    tmp_path: Path,
) -> None:
    user, shop_port, port = new_user(), free_port(), free_port()
    path, stock, shop = tmp_path / "mail.yaml", tmp_path / "stock.sqlite3", f"http://127.0.0.1:{shop_port}"
    path.write_text(yaml.safe_dump(config(dovecot, user, smtp, shop, engine[0])))
    uvicorn = ["uvicorn", "examples.pharmacy.app:app", "--port", str(shop_port)]
    serve = ["service.cli", "mail", "serve", "--config", str(path), "--port", str(port)]
    async with (
        FakeOpenAI(model).running() as llm,
        process(*uvicorn, PHARMACY_DATABASE=str(stock)) as pharmacy,
        process(
            *serve,
            MAIL_PASSWORD=PASSWORD,
            FLOW_ENGINE_DATA_DIR=str(engine[1]),
            FLOW_ENGINE_LLM_MODEL="openai:scripted",
            OPENAI_BASE_URL=llm.base_url,
            OPENAI_API_KEY="sk-none",
            FLOW_ENGINE_LOG_LEVEL="info",
        ) as agent,
        httpx.AsyncClient(base_url=engine[0]) as rest,
    ):
        await answering(f"{shop}/drugs?query=ibu", pharmacy)
        await answering(f"http://127.0.0.1:{port}/health/ready", agent)
        await asyncio.to_thread(dovecot.deliver, user, *MAILS)

        async def rows() -> dict[str, Any]:
            listed = (await rest.get("/v1/agent-runs")).json()
            return {row["message_id"].partition("@")[0][1:]: row for row in listed if row["mailbox"] == user}

        async def are(**statuses: str) -> None:
            async def so() -> bool:
                return {name: row["status"] for name, row in (await rows()).items()} == statuses

            try:
                await until(so, within_s=PATIENT_S)
            except TimeoutError:
                raise AssertionError(await rows()) from None

        ended = dict.fromkeys(("reserve", "hours", "complaint"), "completed")
        await are(**ended, price="waiting")
        assert smtp.sent == [], "the example's replies wait for a person"
        waits = (await rows())["price"]
        approved = await rest.post(f"/v1/agent-runs/{waits['id']}/approve")
        assert approved.status_code == 200
        await until(lambda: smtp.sent, within_s=PATIENT_S)
        await are(**ended, price="completed")
        found = await rows()
        task = await at_the_engine(engine[0], found["complaint"])
        metrics = (await rest.get(f"http://127.0.0.1:{port}/metrics")).text
        agent.send_signal(signal.SIGTERM)
        output, _ = await asyncio.to_thread(agent.communicate, timeout=30)
        assert agent.returncode == 0
        read = [each.body["messages"][1]["content"] for each in llm.requests]
    drafts = [parse_mail(raw) for raw in dovecot.messages(user, "Drafts")]
    by_thread = {draft.in_reply_to[0]: draft for draft in drafts}
    flags = dict(
        zip(
            [each.split(b"Message-ID: <")[1].split(b"@")[0].decode() for each in MAILS],
            dovecot.flags(user),
            strict=True,
        )
    )

    reserved(found["reserve"], by_thread["<reserve@mails.example>"], stock)
    assert any("New support inquiry from Jana Nováková (jana@customer.example):" in each for each in read)
    assert len(drafts) == 2
    assert dovecot.flags(user, "Drafts") == [{"\\Draft"}, {"\\Draft"}]

    hours = by_thread["<hours@mails.example>"]
    assert (found["hours"]["route"], found["hours"]["job"], found["hours"]["rule"]) == (
        "pipeline",
        "classify",
        "default",
    )
    assert (hours.subject, [each.email for each in hours.to]) == (
        "Re: Otevírací doba",
        ["petr@customer.example"],
    )
    assert flags["hours"] == {"question"}

    answered_in_the_thread(dovecot.messages(user, "Sent"), smtp)
    assert flags["price"] == flags["reserve"] == set(), "what came in stays unseen"

    assert found["complaint"]["tool_calls_log"][0]["result"] == {"status": "escalated", "task": "perito"}
    assert (task.task_type, task.task_name, task.channel) == ("HUM", "perito", "mail")
    logged(output.decode())
    assert f'flow_engine_mails_taken_in_total{{mailbox="{user}"}} 4.0' in metrics


def reserved(row: Mapping[str, Any], draft: ParsedMail, stock: Path) -> None:
    """A search and a reservation were made at the pharmacy, and a draft tells of it."""
    assert (row["rule"], row["profile"], row["job"]) == ("pharmacy_support", "pharmacy", "agent_process")
    search, reservation, written = row["tool_calls_log"]
    assert [each.keys() for each in row["tool_calls_log"]] == [
        {"tool", "arguments", "result", "iteration"}
    ] * 3
    assert [each["iteration"] for each in row["tool_calls_log"]] == [1, 2, 3]
    assert search["result"]["drugs"][0]["price_czk"] == 79
    assert reservation["result"]["status"] == "reserved"
    assert written["result"]["status"] == "created"
    assert (row["final_message"], row["iterations"], row["error"]) == ("Hotovo.", 4, None)
    assert "lék máme" in draft.text
    with closing(sqlite3.connect(stock)) as reader:
        assert reader.execute("SELECT drug, pharmacy_id FROM reservations").fetchall() == [
            ("Ibuprofen 400 mg", "brno-1")
        ]
        at_brno = "SELECT pieces FROM stock WHERE drug = 'Ibuprofen 400 mg' AND pharmacy_id = 'brno-1'"
        assert reader.execute(at_brno).fetchone() == (11,)


def answered_in_the_thread(in_sent: Sequence[bytes], smtp: SmtpServer) -> None:
    assert list(in_sent) == smtp.contents
    (sent,) = map(parse_mail, in_sent)
    assert sent.in_reply_to == ("<price@mails.example>",)
    assert sent.references == ("<before@mails.example>", "<price@mails.example>")
    assert sent.values("Auto-Submitted") == ("auto-replied",)
    assert sent.content_type == "multipart/alternative"
    assert smtp.sent[0].rcpt_tos == [HELPDESK]


def logged(output: str) -> None:
    """Runs and rules stand in the log, and nothing of the mails or of the people."""
    assert "send_downgraded" in output
    assert output.count("mail_taken_in") == 4
    assert output.count("run_ended") == 4
    assert output.count("run_waits") == 1
    assert output.count('"event":"model_call"') == 4 + 2 + 2 + 2, "each once"
    for private in ("jana@", "petr@", "eva@", "Nováková", "ibuprofen", "Otevírací", "člověkem", PASSWORD):
        assert private not in output


# --- one conversation for a thread -----------------------------------------------------------------


@pytest.fixture
def world(
    engine: tuple[str, Path],
    dovecot: Dovecot,
    new_user: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    environment(monkeypatch)
    return World(dovecot, new_user(), engine[1])


def in_a_flow(world: World, engine_url: str, **changes: Any) -> dict[str, Any]:
    document = simple_config(world.dovecot.port, world.user, name=world.user, **changes)
    flow = {"engine_url": engine_url, "flow_id": "claim", "tag": "prod"}
    document["agent"]["profiles"]["pharmacy"]["flow"] = flow
    return document


async def at_the_engine(engine_url: str, row: Mapping[str, Any]) -> AgentData:
    """Where the conversation of a run is; the engine tells a contact that it knows."""
    http = engine_http(engine_url)
    contact = Contact(str(row["conversation_id"]), str(row["id"]))
    choice = FlowChoice(flow_id="claim", tag="prod")
    data = await EngineClient(http).new_contact(NewContact(contact, choice, "mail"))
    await http.aclose()
    return data


async def test_escalate_moves_the_threads_conversation_to_a_human_task(  # M11
    world: World, engine: tuple[str, Path]
) -> None:
    path = world.write(in_a_flow(world, engine[0]))
    escalates = [
        CallsTools([ToolCall("c1", "escalate", {"reason": "wants a person"})]),
        Says("A person will answer."),
    ]
    async with world.serving(path, escalates) as service:
        world.dovecot.deliver(world.user, simple_mail(1))

        async def first() -> bool:
            return any(
                row["mailbox"] == world.user and row["status"] == "completed"
                for row in await service.runs.rows("default")
            )

        await until(first)
        row = next(row for row in await service.runs.rows("default") if row["mailbox"] == world.user)
    assert row["tool_calls_log"][0]["result"] == {"status": "escalated", "task": "perito"}  # type: ignore[index,call-overload]
    assert row["conversation_id"]
    data = await at_the_engine(engine[0], row)
    assert (data.task_name, data.task_type, data.channel) == ("perito", "HUM", "mail")
    assert world.dovecot.flags(world.user)[0] - {"\\Recent"} == set(), "the flow has it, not a flag"

    async with world.serving(path, [Says("never asked for")]) as service:
        answer = simple_mail(2, headers=["References: <m1@example.com>", "In-Reply-To: <m1@example.com>"])
        world.dovecot.deliver(world.user, answer)

        async def second() -> list[Any]:
            return [
                row
                for row in await service.runs.rows("default")
                if row["message_id"] == "<m2@example.com>" and row["status"] == "completed"
            ]

        await until(second)
        (later,) = await second()
        shown = await service.runs.row("default", str(later["id"]))
    assert later["conversation_id"] == row["conversation_id"], "one conversation for the thread"
    assert shown["llm_calls"] == [], "with a person at work the agent says nothing"

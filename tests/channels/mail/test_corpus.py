"""150 odd mails and more: no crash, no answer where none is due, memory and time bounded (M15)."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from adapters.models.scripted import Answers, CallsTools, Says, ScriptedModel
from channels.mail.message import parse_mail
from channels.mail.ports import RunOutcome
from channels.mail.preprocessing import crisp_text, default_text, reads
from channels.mail.routing import judge
from flow_engine.ports.models import LLMRequest, ToolCall
from tests.channels.mail.corpus import ROBOTS, corpus
from tests.channels.mail.mails import config, rule
from tests.channels.mail.test_processing import World

CORPUS = corpus()
LONGEST_S = 5.0
SETTINGS = config([rule({"subject_contains": "question", "forwarded_from": "info@leku.example"})])


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 150


@pytest.mark.parametrize("name", CORPUS)
def test_an_odd_mail_is_still_a_mail(name: str) -> None:
    began = time.process_time()
    found = parse_mail(CORPUS[name])
    verdict = judge(SETTINGS, SETTINGS.every_mailbox[0], found)
    texts = [reads(found, preprocess) for preprocess in (default_text, crisp_text)]
    assert time.process_time() - began < LONGEST_S
    for text in (*texts, found.subject, found.own_text, *(each.name for each in found.attachments)):
        text.encode()  # no lone surrogates
        assert not {character for character in text if ord(character) < 32} - {"\n", "\t"}
    assert max(map(len, texts)) < 80_000
    assert all("\n" not in value for _, value in found.headers)
    assert (verdict.automatic is not None) is name.startswith(ROBOTS)


class _World(World):
    """An agent that answers whatever it may."""

    async def answered(self, raw: bytes) -> RunOutcome:
        found = parse_mail(raw)
        people = ", ".join(each.email for each in found.senders if each.email) or "nobody@x.example"
        letter = {"to": people, "subject": found.subject, "body": "Yes."}

        def step(request: LLMRequest) -> CallsTools | Says | Answers:
            if request.purpose == "classify":
                return Answers({"label": None, "language": "en", "urgency": "low", "summary": "x"})
            if request.purpose == "draft" or request.messages[-1].role == "tool":
                return Says("Yes.")
            return CallsTools([ToolCall("c1", "send_reply", letter)])

        self.model = ScriptedModel(step)
        return await self.run_parsed(found)


@pytest.mark.anyio
@pytest.mark.parametrize("trust", ["any", None])
async def test_robots_are_never_answered_and_nothing_else_breaks_a_run(trust: str | None) -> None:
    settings = config([rule({"all": True}, **({"trust": trust} if trust else {}))])
    for name, raw in CORPUS.items():
        world = _World(settings, [Says("")])
        outcome = await world.answered(raw)
        assert outcome.status == "completed", (name, outcome.error)
        if name.startswith(ROBOTS):
            assert not world.mailbox.outbox, name
            assert not world.model.requests, name
        if trust is None:
            assert "send" not in world.sent, name


_BIG = """
import resource, sys
from channels.mail.message import parse_mail
from channels.mail.preprocessing import default_text, reads
from tests.channels.mail.corpus import big_mails
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for name, raw in big_mails():
    before = used()
    bound = 25_000_000
    found = parse_mail(raw[:bound], size=len(raw))
    text = reads(found, default_text)
    assert found.is_cut and found.size == len(raw), name
    assert len(text) < 80_000 and "Only the beginning was read" in text, name
    more = used() - before
    print(name, more // 1_000_000, file=sys.stderr)
    assert more < 400_000_000, (name, more)
    del raw
"""


def test_mails_of_30_mb_take_a_bounded_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BIG], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr

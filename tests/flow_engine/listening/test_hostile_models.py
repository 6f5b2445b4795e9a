"""Models that go wrong: nothing false is stored, what is right is kept, and nobody waits for them (F37)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import pytest

from adapters.models.fake_openai import FakeOpenAI, Malformed, Received, Status, WireStep
from adapters.models.scripted import Answers, DropsStream, Endless, Says, Stalls, Truncated
from tests.flow_engine.listening.talking import Talk, answer_properties, model_settings, scripted_openai
from tests.service_process import running_service

TIMEOUT_S = 0.5
RETRIED_WITHIN_S = 60.0
ASKED = "In quale sede preferisce venire, e come si chiama?"
SAID = "Al Lido. Mi chiamo Ada Greco, il codice è PA204518."
BY_RULES = {"sede": "Lido"}
BY_MODEL = {"nomePaziente": "Ada Greco", "codicePrenotazione": "PA204518"}
RIGHT = {**BY_RULES, **BY_MODEL}
NOTHING_REACHED: list[object] = []


def answers(**values: object) -> Answers:
    return Answers({"values": values, "checkpoints": NOTHING_REACHED})


STALLED = Stalls(30, answers(**BY_MODEL))

FAILING: dict[str, WireStep] = {
    "stalls": STALLED,
    "drops the stream": DropsStream('{"values": {"nomePaziente": "Ada'),
    "truncates its JSON": Truncated({"values": BY_MODEL, "checkpoints": NOTHING_REACHED}),
    "never ends": Endless('{"values": {"nomePaziente": "Ada Greco"}} '),
    "sends what is no event": Malformed(),
    "is overloaded": Status(503),
    "talks instead": Says("The patient is called Ada Greco."),
}

PARTLY_RIGHT: dict[str, tuple[WireStep, dict[str, str]]] = {
    "an unknown variable": (answers(**BY_MODEL, neverAskedFor="x"), RIGHT),
    "a wrong type": (answers(**{**BY_MODEL, "nomePaziente": {"first": "Ada"}}), {
        **BY_RULES, "codicePrenotazione": "PA204518",
    }),
    "a day that there is not": (answers(**BY_MODEL, dataAppuntamento="2026-02-30"), RIGHT),
    "a number that is no phone": (answers(**BY_MODEL, telefono="12"), RIGHT),
    "a value that the rules have read": (answers(**BY_MODEL, sede="Centro"), RIGHT),
    "a tool's variable": (answers(**BY_MODEL, idPrestazione="DERM-1"), RIGHT),
    "an unknown checkpoint": (
        Answers({"values": BY_MODEL, "checkpoints": [{"id": "nobodys", "reason": ""}, 7, None]}),
        RIGHT,
    ),
    "checkpoints of another shape": (Answers({"values": BY_MODEL, "checkpoints": {"id": []}}), RIGHT),
    "values of another shape": (Answers({"values": ["Ada"], "checkpoints": NOTHING_REACHED}), BY_RULES),
    "nothing": (Answers({}), BY_RULES),
}  # fmt: skip


@dataclass
class Behaviour:
    """What the model does with the next calls."""

    step: WireStep

    def __call__(self, received: Received) -> WireStep:
        return self.step if "values" in answer_properties(received) else Says("")


@dataclass(frozen=True)
class Hostile:
    """A service, its model, and how that behaves."""

    http: httpx.Client
    fake: FakeOpenAI
    model: Behaviour

    def told(self, conversation: str) -> Talk:
        """A conversation in which the user has just said something."""
        talk = Talk(self.http, "health-booking-v1", conversation)
        talk.started()
        talk.bot(ASKED)
        talk.user(SAID)
        return talk


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    behaviour = Behaviour(STALLED)
    with scripted_openai(behaviour) as fake:
        environment = model_settings(
            fake, FLOW_ENGINE_LLM_TIMEOUT_S=str(TIMEOUT_S), FLOW_ENGINE_LOG_LEVEL="error"
        )
        with (
            running_service(tmp_path_factory.mktemp("hostile"), **environment) as base,
            httpx.Client(base_url=base, timeout=30) as client,
        ):
            yield Hostile(client, fake, behaviour)


@pytest.mark.parametrize("behaviour", FAILING)
def test_a_failed_call_stores_what_rules_found_and_is_made_up_for(  # F37, F38
    hostile: Hostile, behaviour: str
) -> None:
    hostile.model.step, asked = FAILING[behaviour], len(hostile.fake.requests)
    talk = hostile.told(f"fails-{behaviour}")
    _until(lambda: talk.mined() == BY_RULES)
    assert len(hostile.fake.requests) > asked
    assert talk.prompt()["memoryFresh"] is False
    hostile.model.step = answers(**BY_MODEL)
    talk.read(RETRIED_WITHIN_S)
    assert talk.mined() == RIGHT


@pytest.mark.parametrize("answer", PARTLY_RIGHT)
def test_of_an_answer_what_fits_is_taken(hostile: Hostile, answer: str) -> None:  # F37
    hostile.model.step, right = PARTLY_RIGHT[answer]
    talk = hostile.told(f"answers-{answer}")
    talk.read()
    assert talk.mined() == right


def _until(reached: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.02)


# --- nobody waits ---------------------------------------------------------------------------------

WARM_UP_S, ROUND_S, ROUNDS = 0.5, 2.0, 3
"""Both services are asked by turns, so what else the machine does meets both. The best round counts."""
CONVERSATIONS = 12
"""Fewer than a process asks a model for at once."""
STALLS_FOR_S = 15
"""Longer than all that is measured: one model call of every conversation is under way all the while, and the
process does nothing else beside the requests."""
MOST_SLOWER = 1.2
"""Of the median and of the 95th percentile."""
NOISE_MS = 1.5
"""Both services share two cores with whatever else runs: what one scheduling of a process costs."""


@dataclass(frozen=True)
class Service:
    talks: Sequence[Talk]
    latencies: dict[str, list[float]]

    def turn(self, number: int) -> None:
        """One prompt and one change of task."""
        turn, talk = number // CONVERSATIONS, self.talks[number % CONVERSATIONS]
        task = ("informazioni", "prestazione")[turn % 2]
        for call, request in (("prompt", talk.prompt), ("change task", lambda: talk.moved(task))):
            began = time.perf_counter()
            request()
            self.latencies[call].append((time.perf_counter() - began) * 1000)

    @classmethod
    def opened(cls, http: httpx.Client) -> Service:
        talks = [Talk(http, "health-booking-v1", f"measured-{number}") for number in range(CONVERSATIONS)]
        for talk in talks:
            talk.started()
        return cls(talks, {"prompt": [], "change task": []})


class Waiting(Talk):
    """An agent that lets its prompts wait until what was said is read."""

    def prompt(self, **query: Any) -> Any:
        return super().prompt(wait_ms=200, **query)


@dataclass(frozen=True)
class Pair:
    """Two services that get the same requests by turns: one without a model, one whose model stalls."""

    without: Service
    stalling: Service
    numbers: Iterator[int]

    def asked(self, seconds: float) -> dict[str, float]:
        """How many times slower the second was in this round, by what was asked."""
        services = [self.without, self.stalling]
        for service in services:
            for latencies in service.latencies.values():
                latencies.clear()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            number = next(self.numbers)
            for service in services if number % 2 else reversed(services):
                service.turn(number)
        return {
            call: max(
                (_percentile(self.stalling.latencies[call], p) - NOISE_MS) / _percentile(base, p)
                for p in (50, 95)
            )
            for call, base in self.without.latencies.items()
        }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with scripted_openai([STALLED]) as fake:
        quiet = {"FLOW_ENGINE_LOG_LEVEL": "error"}
        settings = model_settings(fake, FLOW_ENGINE_LLM_TIMEOUT_S=str(STALLS_FOR_S), **quiet)
        with (
            running_service(tmp_path_factory.mktemp("without"), **quiet) as plain,
            running_service(tmp_path_factory.mktemp("stalling"), **settings) as slow,
            httpx.Client(base_url=plain, timeout=30) as plain_http,
            httpx.Client(base_url=slow, timeout=30) as slow_http,
        ):
            services = Pair(Service.opened(plain_http), Service.opened(slow_http), count())
            services.asked(WARM_UP_S)
            for service in (services.without, services.stalling):
                for talk in service.talks:
                    talk.user(SAID)
            _until(lambda: len(fake.requests) == CONVERSATIONS)
            yield services


def test_agents_do_not_wait_for_a_stalling_model(pair: Pair) -> None:  # F37
    rounds = [pair.asked(ROUND_S) for _ in range(ROUNDS)]
    print(rounds)
    for call in ("prompt", "change task"):
        assert min(found[call] for found in rounds) <= MOST_SLOWER


def test_one_that_waits_for_it_is_found_out(pair: Pair) -> None:  # negative control
    talks = [
        Waiting(talk.http, talk.version, talk.conversation, said=talk.said) for talk in pair.stalling.talks
    ]
    waits = Pair(pair.without, Service(talks, pair.stalling.latencies), pair.numbers)
    assert min(waits.asked(ROUND_S)["prompt"] for _ in range(ROUNDS)) > MOST_SLOWER


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]

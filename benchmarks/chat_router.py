"""How often the chat's router finds the agent that is meant: `python -m benchmarks.chat_router`.

The table (`chat_router.json`) has agents with their examples, and utterances by language that are none of
these examples, some of them for nobody. No model is asked. Two more sets are printed apart and have no goal:
`chat_router_apart.json`, which was looked at after it had been measured, and `chat_router_second.json`, which
was written before the router's rules; only its sums were looked at.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from channels.chat.decisions import Decision, Orchestrator
from channels.chat.inheritance import effective
from channels.chat.router import IntentRouter
from channels.chat.rows import SMALLTALK, StoredRow, whole
from channels.chat.settings import ChatSettings
from channels.chat.table import BOOTSTRAP

TABLE = Path(__file__).parent / "chat_router.json"
APART = {name: TABLE.with_name(f"chat_router_{name}.json") for name in ("apart", "second")}
TOP_1_GOAL = 0.85
TOP_3_GOAL = 0.97
REFUSED_GOAL = 0.75


class Case(BaseModel):
    """`agent` is None for an utterance that no agent is for."""

    model_config = ConfigDict(frozen=True)

    language: str
    agent: str | None
    text: str


class RouterTable(BaseModel):
    model_config = ConfigDict(frozen=True)

    agents: tuple[dict[str, Any], ...]
    utterances: tuple[Case, ...]

    def router(self) -> IntentRouter:
        rows = [*self.agents, *(row for row in BOOTSTRAP if row["name"] == SMALLTALK)]
        table = {str(row["name"]): StoredRow(1, whole(row)) for row in rows}
        return IntentRouter(effective(name, table) for name in table)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one language. Shares of the utterances that are for an agent; `refused` of those for nobody."""

    language: str
    utterances: int
    top_1: float
    top_3: float
    accepted_wrongly: float
    refused: float


def read_table(path: Path = TABLE) -> RouterTable:
    return RouterTable.model_validate(orjson.loads(path.read_bytes()))


def held_out(table: RouterTable, path: Path) -> RouterTable:
    """The agents of the table with other utterances."""
    cases = tuple(Case(**case) for case in orjson.loads(path.read_bytes()))
    return table.model_copy(update={"utterances": cases})


def measured(table: RouterTable, router: IntentRouter) -> list[Figures]:
    languages = sorted({case.language for case in table.utterances})
    return [_figures(language, table, router) for language in languages]


def decisions(table: RouterTable, router: IntentRouter) -> list[Decision]:
    """What the scores alone decide, with the default thresholds."""
    orchestrator = Orchestrator(ChatSettings(), None)
    return [orchestrator.by_scores(router.candidates(case.text, 5)) for case in table.utterances]


def _figures(language: str, table: RouterTable, router: IntentRouter) -> Figures:
    cases = [case for case in table.utterances if case.language == language]
    meant = [case for case in cases if case.agent is not None]
    best = [[each.agent for each in router.candidates(case.text, 3) if each.score > 0] for case in meant]
    decided = dict(zip(table.utterances, decisions(table, router), strict=True))
    wrong = [case for case in meant if decided[case].action == "accept" and decided[case].agent != case.agent]
    nobodys = [case for case in cases if case.agent is None]
    return Figures(
        language,
        len(cases),
        sum(case.agent in names[:1] for case, names in zip(meant, best, strict=True)) / len(meant),
        sum(case.agent in names for case, names in zip(meant, best, strict=True)) / len(meant),
        len(wrong) / len(meant),
        sum(decided[case].action == "refuse" for case in nobodys) / len(nobodys),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_router", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    table = read_table()
    router = table.router()
    figures = measured(table, router)
    began = time.perf_counter()
    first = [decision.reply() for decision in decisions(table, router)]
    ms = (time.perf_counter() - began) * 1000 / len(first)
    differing = sum(
        one != other.reply() for one, other in zip(first, decisions(table, table.router()), strict=True)
    )
    sets = {"": figures, **{name: measured(held_out(table, path), router) for name, path in APART.items()}}
    if options.json:
        rows = [{"set": name, **asdict(each)} for name, some in sets.items() for each in some]
        print(orjson.dumps({"languages": rows, "ms": ms, "differing": differing}).decode())
    else:
        print(f"{'language':<10}{'cases':>6}{'top-1':>8}{'top-3':>8}{'accepted wrongly':>18}{'refused':>9}")
        for name, each in ((name, each) for name, some in sets.items() for each in some):
            print(
                f"{f'{each.language} {name}':<10}{each.utterances:>6}{each.top_1:>8.3f}{each.top_3:>8.3f}"
                f"{each.accepted_wrongly:>18.3f}{each.refused:>9.3f}"
            )
        print(
            f"goals: top-1 {TOP_1_GOAL}, top-3 {TOP_3_GOAL}, refused {REFUSED_GOAL}; {ms:.2f} ms a decision; "
            f"decisions that differ between two runs: {differing}"
        )
    good = all(
        each.top_1 >= TOP_1_GOAL and each.top_3 >= TOP_3_GOAL and each.refused >= REFUSED_GOAL
        for each in figures
    )
    return 0 if good and not differing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

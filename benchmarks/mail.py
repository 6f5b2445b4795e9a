"""How many mails are parsed and routed a second on one core, and what one costs in tokens:
`python -m benchmarks.mail`. Ends with 1 when the goal is missed.

No mailbox and no model take part. The tokens are those of the example agent's run of four turns and of the
pipeline, counted at four characters a token; what a run really costs is in `llm_calls`.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.processes import least_s
from benchmarks.results import Figure
from channels.mail.loading import LoadedConfig, load_config
from channels.mail.message import parse_mail
from channels.mail.preprocessing import default_text, reads
from channels.mail.routing import judge
from service.logs import configure_logging
from service.mail_demo import CONFIG, SAMPLES, demo_outcome

ROUNDS = 400
GOAL_A_SECOND = 300.0


def measure_mail(rounds: int) -> tuple[Figure, ...]:
    loaded = load_config(CONFIG)
    raws = [sample.raw for sample in SAMPLES]
    large = raws[0].replace(b"\r\n\r\n", b"\r\n\r\n" + b"Some words of a longer mail.\r\n" * 3_000, 1)
    return (
        Figure(
            "mails parsed, routed and read, short", _a_second(loaded, raws, rounds), "mails/s", GOAL_A_SECOND
        ),
        Figure("mails parsed, routed and read, 100 KB", _a_second(loaded, [large], rounds // 20), "mails/s"),
        *asyncio.run(_tokens()),
    )


def _a_second(loaded: LoadedConfig, raws: list[bytes], rounds: int) -> float:
    box = loaded.config.every_mailbox[0]

    def one(raw: bytes) -> None:
        mail = parse_mail(raw)
        judge(loaded.config, box, mail)
        reads(mail, default_text)

    return rounds * len(raws) / least_s([lambda: [one(raw) for _ in range(rounds) for raw in raws]])


async def _tokens() -> list[Figure]:
    found: list[Figure] = []
    for sample, name in (
        (SAMPLES[0], "an agent's run of four turns"),
        (SAMPLES[2], "a classification and a draft"),
    ):
        progress = (await demo_outcome(sample)).progress
        tokens = progress.input_tokens + progress.output_tokens
        found.append(Figure(f"{name}, {progress.iterations} model calls", float(tokens), "tokens"))
    return found


def main() -> int:
    configure_logging("error")
    figures = measure_mail(ROUNDS)
    for figure in figures:
        print(f"{figure.name:55} {figure.value:10.0f} {figure.unit}")
    return 0 if figures[0].value >= GOAL_A_SECOND else 1


if __name__ == "__main__":
    sys.exit(main())

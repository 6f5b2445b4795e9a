"""What is measured in real time, on a machine that may be busy."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec

P = ParamSpec("P")
ROUNDS: Final = 4


def in_the_best_round(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """A test whose assertions must hold in one round of four: a machine that is busy elsewhere makes a line
    late in some of them, a line that is late by itself is late in all. The test must leave nothing behind.
    Raises the AssertionError of the last round."""

    @functools.wraps(test)
    async def rounds(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(ROUNDS - 1):
            try:
                return await test(*args, **kwargs)
            except AssertionError:
                continue
        return await test(*args, **kwargs)

    return rounds

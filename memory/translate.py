"""The one place where redis-py's errors become the core's: none of them leaves this package."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from flow_engine.errors import RetryLater

_AWAY = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ClusterDownError,
    RedisClusterException,  # no node of the cluster answers: no kind of ConnectionError
    TryAgainError,
)
_REFUSING_WRITES = (OutOfMemoryError, ReadOnlyError)
# The driver has no class for these: the disk is full, too few replicas, a script that runs too long.
_REFUSING_CODES = ("MISCONF", "NOREPLICAS", "BUSY")


@contextmanager
def store_errors_translated() -> Generator[None]:
    try:
        yield
    except _AWAY as error:
        raise RetryLater("memory_unavailable", "the conversation memory does not answer") from error
    except ResponseError as error:
        if not isinstance(error, _REFUSING_WRITES) and str(error).split(" ")[0] not in _REFUSING_CODES:
            raise
        raise RetryLater(
            "memory_unavailable", "the conversation memory takes no writes now", after_seconds=5
        ) from error

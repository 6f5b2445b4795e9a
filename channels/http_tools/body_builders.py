"""Bodies that take a calculation: functions by name, which a tool's `body_builder` calls (V10).

A builder gets the arguments of the tool, the context of the call and the session, and gives the body.
Whoever needs another one installs a package with an entry point in the group `flow_engine.body_builders`:
its name is what configs write, its object a function `(args, ctx, session) -> body`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import entry_points
from typing import Any, Final, TypeAlias, cast

import structlog

from channels.http_tools.orders import BodyRefused, order_builder, reservation_builder
from channels.http_tools.scope import Values
from flow_engine.errors import CallTheOperator
from flow_engine.values import JsonValue, listed

_log: Any = structlog.get_logger("flow_engine.agents.body_builders")

ENTRY_POINTS: Final = "flow_engine.body_builders"

BodyBuilder: TypeAlias = Callable[[Values, Values, JsonValue], Mapping[str, JsonValue]]
"""`(args, ctx, session) -> body`. Raises BodyRefused, whose text the model is told."""


class BuilderRegistry(Mapping[str, BodyBuilder]):
    """Builders by name."""

    def __init__(self, builders: Mapping[str, BodyBuilder]) -> None:
        self._builders = dict(builders)

    def __getitem__(self, name: str) -> BodyBuilder:
        return self._builders[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)

    def build(self, name: str, args: Values, ctx: Values, session: JsonValue) -> dict[str, JsonValue]:
        """The body, without the fields that are null, at every level.

        Raises BodyRefused, also for whatever else a builder raises. A name that is not registered is a
        KeyError: configs are checked for that.
        """
        builder = self._builders[name]
        try:
            return {
                key: _without_nulls(value)
                for key, value in builder(args, ctx, session).items()
                if value is not None
            }
        except BodyRefused:
            raise
        # Builders are anybody's code, and the model is the one to be told that one failed.
        except Exception as error:
            _log.warning("body_builder_failed", builder=name, exception=type(error).__name__)
            raise BodyRefused("the request could not be put together") from error


def default_builders(clock: Callable[[], datetime]) -> BuilderRegistry:
    """The builders that come along. `clock` gives the time with its zone."""
    return BuilderRegistry(
        {"confirm_order": order_builder(clock), "confirm_reservation": reservation_builder(clock)}
    )


def installed_builders(clock: Callable[[], datetime]) -> BuilderRegistry:
    """Those that come along and those of installed packages; the one place that loads them.

    Raises CallTheOperator for a name twice, or an entry point that gives no function.
    """
    builders = dict(default_builders(clock))
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name in builders:
            raise CallTheOperator(
                "body_builder_twice",
                f"the body builder {entry.name!r} of {entry.value!r} is there already; "
                f"accepted is a name beside {listed(sorted(builders))}",
            )
        builders[entry.name] = _loaded(entry.name, entry.value, entry.load)
    return BuilderRegistry(builders)


def _loaded(name: str, value: str, load: Callable[[], object]) -> BodyBuilder:
    try:
        builder = load()
    except (ImportError, AttributeError) as error:
        raise CallTheOperator(
            "body_builder_missing", f"the body builder {name!r} cannot be loaded from {value!r}: {error}"
        ) from error
    if not callable(builder):
        raise CallTheOperator(
            "body_builder_invalid", f"{value!r} is no function; accepted is (args, ctx, session) -> body"
        )
    return cast("BodyBuilder", builder)


def _without_nulls(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value

"""Bodies that take a calculation: functions by name, which a tool's `body_builder` calls (V10).

A builder gets the arguments of the tool, the context of the call and the session, and gives the body.
Whoever needs another one installs a package with an entry point in the group `flow_engine.body_builders`:
its name is what configs write, its object a function `(args, ctx, session) -> body`.

Those of an order and of a reservation come along. Both read from the context `agent_id`, `call_id`,
`customer_id`, `caller_phone` and the last check of availability, `last_availability_check
{estimatedTimeISO, estimatedTime}`. What is not known is left out. Order: the model names dishes and options
by the numbers of the menu that it has; `ctx.item_map` maps a number, as text, to `{id, name}`. Reservation:
the time is `HH:MM`.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import entry_points
from typing import Any, Final, TypeAlias, cast
from zoneinfo import ZoneInfo

import structlog

from channels.http_tools.placeholders import real_number
from channels.http_tools.scope import Values
from flow_engine.errors import CallTheOperator
from flow_engine.json_values import walk
from flow_engine.values import JsonValue, listed, utc_text

_log: Any = structlog.get_logger("flow_engine.agents.body_builders")

ZONE: Final = ZoneInfo("Europe/Paris")

_CLOCK_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")

ENTRY_POINTS: Final = "flow_engine.body_builders"

BodyBuilder: TypeAlias = Callable[[Values, Values, JsonValue], Mapping[str, JsonValue]]
"""`(args, ctx, session) -> body`. Raises BodyRefused, whose text goes to the model."""

Builders: TypeAlias = Mapping[str, BodyBuilder]
"""By name."""


class BodyRefused(Exception):
    """No body can be made of these arguments: they are refused before anything is sent. The text says what
    would be accepted; it goes to the model."""


_OF_ARGUMENTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a builder raises for arguments of another shape than it expects."""


def built_body(
    builders: Builders, name: str, args: Values, ctx: Values, session: JsonValue
) -> dict[str, JsonValue]:
    """The body, a JSON object without the fields that are null, at every level. Raises BodyRefused, also
    where a builder fails at what its arguments hold, for the model. Whatever else it raises is a bug
    of it, for the outermost layer of its channel. A name that is not there is a KeyError: configs
    are checked for that."""
    builder = builders[name]
    try:
        return {
            key: _without_nulls(value)
            for key, value in builder(args, ctx, session).items()
            if value is not None
        }
    except BodyRefused:
        raise
    except _OF_ARGUMENTS as error:
        _log.warning("body_builder_failed", builder=name, exception=type(error).__name__)
        raise BodyRefused("the request could not be put together") from error


def default_builders(clock: Callable[[], datetime]) -> Builders:
    """The builders that come along. `clock` gives the time with its zone."""
    return {"confirm_order": order_builder(clock), "confirm_reservation": reservation_builder(clock)}


def installed_builders(clock: Callable[[], datetime]) -> Builders:
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
        try:
            builder = entry.load()
        except (ImportError, AttributeError) as error:
            raise CallTheOperator(
                "body_builder_missing",
                f"the body builder {entry.name!r} cannot be loaded from {entry.value!r}: {error}",
            ) from error
        if not callable(builder):
            raise CallTheOperator(
                "body_builder_invalid",
                f"{entry.value!r} is no function; accepted is (args, ctx, session) -> body",
            )
        builders[entry.name] = cast("BodyBuilder", builder)
    return builders


def _without_nulls(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def order_builder(clock: Callable[[], datetime]) -> BodyBuilder:
    """`total` is the argument, else the sum over the items of `quantity` times `unit_price` and the
    `extra_price` of every option. `totalPrice` of an item is without its options, as `unit_price` is."""

    def build(args: Values, ctx: Values, session: JsonValue) -> dict[str, JsonValue]:
        items = args.get("items")
        if not isinstance(items, list) or not items:
            raise BodyRefused("items: accepted is a list of at least one item")
        menu = ctx.get("item_map")
        lines = [_line(item, menu) for item in items]
        total = _number(args.get("total"))
        now, shown = clock(), _last_check(ctx, "estimatedTime")
        return {
            **_call_fields(args, ctx),
            "total": _total(lines) if total is None else total,
            "orderType": args.get("order_type"),
            "estimatedReadyAt": _last_check(ctx, "estimatedTimeISO")
            or (next_time(shown, now) if shown else None),
            "items": list[JsonValue](lines),
        }

    return build


def reservation_builder(clock: Callable[[], datetime]) -> BodyBuilder:
    def build(args: Values, ctx: Values, session: JsonValue) -> dict[str, JsonValue]:
        asked = args.get("reservation_time")
        time = _last_check(ctx, "estimatedTimeISO") or (
            next_time(asked, clock()) if isinstance(asked, str) else None
        )
        if time is None:
            raise BodyRefused("reservation_time: accepted is HH:MM")
        return {
            **_call_fields(args, ctx),
            "customerName": args.get("customer_name"),
            "partySize": args.get("party_size"),
            "reservationTime": time,
            "status": "confirmed",
            "seatingPreference": args.get("seating_preference"),
            "notes": args.get("notes"),
        }

    return build


def next_time(text: str, now: datetime) -> str | None:
    """The next moment at which the clocks of the zone show `text`, in UTC; None for text that is no
    `HH:MM`."""
    read = _CLOCK_TIME.fullmatch(text.strip())
    if read is None:
        return None
    shown = int(read[1]), int(read[2])
    today = now.astimezone(ZONE).replace(hour=shown[0], minute=shown[1], second=0, microsecond=0)
    # A change of the clocks can show a time twice in a day, or not at all.
    moments = [
        (today + timedelta(days=days)).replace(fold=fold).astimezone(UTC)
        for days in (0, 1, 2)
        for fold in (0, 1)
    ]
    on_clocks = [(moment, moment.astimezone(ZONE)) for moment in moments if moment >= now]
    return utc_text(min(moment for moment, local in on_clocks if (local.hour, local.minute) == shown))


def _call_fields(args: Values, ctx: Values) -> dict[str, JsonValue]:
    return {
        "restaurantId": ctx.get("agent_id"),
        "callId": ctx.get("call_id"),
        "customerId": ctx.get("customer_id"),
        "customerPhone": args.get("customer_phone") or ctx.get("caller_phone"),
    }


def _last_check(ctx: Values, field: str) -> str | None:
    value = walk(ctx.get("last_availability_check"), (field,))
    return value if isinstance(value, str) and value.strip() else None


def _line(item: JsonValue, menu: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(item, dict):
        raise BodyRefused("items: accepted are objects with id, quantity, unit_price")
    dish = _on_menu(item.get("id"), menu)
    if dish is None:
        raise BodyRefused(f"items: {_menu_number(item.get('id'))!r} is not on the menu")
    quantity = 1 if item.get("quantity") is None else _number(item["quantity"])
    if quantity is None or quantity <= 0:
        raise BodyRefused("items: accepted as quantity is a number above 0")
    price = _number(item.get("unit_price"))
    options = item.get("selected_options")
    # In decimals: three times 0.1 is 0.3 in money.
    return {
        "menuItemId": dish.get("id"),
        "name": dish.get("name"),
        "quantity": quantity,
        "unitPrice": price,
        "totalPrice": None if price is None else _plain(Decimal(str(price)) * Decimal(str(quantity))),
        "selectedOptions": [_option(option, menu) for option in options] if isinstance(options, list) else [],
    }


def _option(option: JsonValue, menu: JsonValue) -> JsonValue:
    """`{name, choice, extra_price}`; the choice of a `choice_id` is the name on the menu."""
    if not isinstance(option, dict):
        raise BodyRefused(
            "selected_options: accepted are objects with name, choice or choice_id, extra_price"
        )
    choice = option.get("choice")
    if option.get("choice_id") is not None:
        found = _on_menu(option["choice_id"], menu)
        if found is None and choice is None:
            raise BodyRefused(f"selected_options: {_menu_number(option['choice_id'])!r} is not on the menu")
        choice = found.get("name") if found else choice
    return {"name": option.get("name"), "choice": choice, "extra_price": option.get("extra_price")}


def _on_menu(number: JsonValue, menu: JsonValue) -> dict[str, JsonValue] | None:
    found = walk(menu, (_menu_number(number),))
    return found if isinstance(found, dict) else None


def _menu_number(number: JsonValue) -> str:
    """The key of a number of the menu: 3, 3.0, "3" and "#3" are the same."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return str(number).strip().removeprefix("#")


def _number(value: JsonValue) -> int | float | None:
    """A number, or text that is one; a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    number = real_number(value)
    return (
        int(number) if number is not None and not isinstance(value, float) and number.is_integer() else number
    )


def _total(lines: list[dict[str, JsonValue]]) -> int | float | None:
    """None where a price is missing, or one of an option is no number."""
    total = Decimal(0)
    for line in lines:
        options = cast("list[dict[str, JsonValue]]", line["selectedOptions"])
        extras = [option["extra_price"] for option in options if option["extra_price"] is not None]
        prices = [_number(price) for price in (line["unitPrice"], *extras)]
        known = [Decimal(str(price)) for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        total += Decimal(str(line["quantity"])) * sum(known, Decimal(0))
    return _plain(total)


def _plain(amount: Decimal) -> int | float:
    return int(amount) if amount == amount.to_integral_value() else float(amount)

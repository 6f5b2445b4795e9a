"""Orders, reservations, and the registry of builders."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint, EntryPoints
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.http_tools import body_builders
from channels.http_tools.body_builders import (
    BodyRefused,
    built_body,
    default_builders,
    installed_builders,
    next_time,
)
from flow_engine.errors import CallTheOperator
from flow_engine.values import JsonValue

PARIS = ZoneInfo("Europe/Paris")
NOW = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)  # 19:00 in Paris
CTX: dict[str, JsonValue] = {
    "agent_id": "r-1",
    "call_id": "c-1",
    "caller_phone": "+33612345678",
    "item_map": {
        "3": {"id": "uuid-3", "name": "Margherita"},
        "12": {"id": "uuid-12", "name": "Extra cheese"},
    },
    "last_availability_check": {"estimatedTimeISO": "2026-11-20T19:30:00Z", "estimatedTime": "20:30"},
}


def order(args: dict[str, JsonValue], **ctx: JsonValue) -> dict[str, JsonValue]:
    return built_body(default_builders(lambda: NOW), "confirm_order", args, CTX | ctx, None)


def reservation(args: dict[str, JsonValue], **ctx: JsonValue) -> dict[str, JsonValue]:
    return built_body(default_builders(lambda: NOW), "confirm_reservation", args, CTX | ctx, None)


def line(**item: JsonValue) -> dict[str, JsonValue]:
    made = order({"items": [{"id": 3, "unit_price": 9.5} | item]})["items"]
    assert isinstance(made, list)
    assert isinstance(made[0], dict)
    return made[0]


WRONG_ITEMS: list[tuple[JsonValue, str]] = [
    (None, "a list of at least one item"),
    ([], "a list of at least one item"),
    ("3", "a list of at least one item"),
    ([3], "objects with id"),
    ([{"id": 99}], "'99' is not on the menu"),
    ([{}], "'None' is not on the menu"),
    ([{"id": 3, "quantity": 0}], "a number above 0"),
    ([{"id": 3, "quantity": -1}], "a number above 0"),
    ([{"id": 3, "quantity": "two"}], "a number above 0"),
    ([{"id": 3, "quantity": True}], "a number above 0"),
    ([{"id": 3, "selected_options": ["large"]}], "objects with name"),
    ([{"id": 3, "selected_options": [{"choice_id": 99}]}], "'99' is not on the menu"),
]


class TestAnOrder:
    def test_is_put_together_from_the_arguments_and_the_call(self) -> None:  # V10
        item: JsonValue = {
            "id": 3,
            "quantity": 2,
            "unit_price": 9.5,
            "selected_options": [{"name": "Size", "choice": "Large", "extra_price": 2}],
        }
        assert order({"order_type": "pickup", "total": 21.5, "items": [item]}, customer_id="cu-1") == {
            "restaurantId": "r-1",
            "callId": "c-1",
            "customerId": "cu-1",
            "customerPhone": "+33612345678",
            "total": 21.5,
            "orderType": "pickup",
            "estimatedReadyAt": "2026-11-20T19:30:00Z",
            "items": [
                {
                    "menuItemId": "uuid-3",
                    "name": "Margherita",
                    "quantity": 2,
                    "unitPrice": 9.5,
                    "totalPrice": 19,
                    "selectedOptions": [{"name": "Size", "choice": "Large", "extra_price": 2}],
                }
            ],
        }

    def test_leaves_out_what_is_not_known(self) -> None:  # V10
        made = order({"items": [{"id": 3}]}, call_id=None, last_availability_check=None)
        assert made.keys() == {"restaurantId", "customerPhone", "items"}

    def test_goes_to_the_number_that_was_given(self) -> None:  # V10
        assert (
            order({"items": [{"id": 3}], "customer_phone": "+33700000000"})["customerPhone"] == "+33700000000"
        )

    @pytest.mark.parametrize("number", [3, "3", "#3", " 3 ", 3.0])
    def test_finds_a_dish_by_its_number_on_the_menu(self, number: JsonValue) -> None:  # V10
        assert line(id=number)["menuItemId"] == "uuid-3"

    @pytest.mark.parametrize(
        ("option", "choice"),
        [
            ({"choice_id": 12}, "Extra cheese"),
            ({"choice_id": "12", "choice": "cheese"}, "Extra cheese"),
            ({"choice_id": 99, "choice": "cheese"}, "cheese"),
            ({"choice": "cheese"}, "cheese"),
        ],
    )
    def test_names_a_looked_up_option(self, option: Mapping[str, JsonValue], choice: str) -> None:  # V10
        options: list[JsonValue] = [{"name": "Extras", "extra_price": 1.5, **option}]
        assert line(selected_options=options)["selectedOptions"] == [
            {"name": "Extras", "choice": choice, "extra_price": 1.5}
        ]

    @pytest.mark.parametrize(
        ("price", "quantity", "total"),
        [(9.5, 1, 9.5), (0.1, 3, 0.3), ("4.20", "2", 8.4), (5, 2, 10), (7, None, 7), (1.1, 0.5, 0.55)],
    )
    def test_counts_in_money(self, price: JsonValue, quantity: JsonValue, total: float) -> None:  # V10
        assert line(unit_price=price, quantity=quantity)["totalPrice"] == total

    def test_is_summed_where_no_total_is_given(self) -> None:  # V10
        items: list[JsonValue] = [{"id": 3, "unit_price": 0.1}, {"id": 12, "unit_price": 0.2, "quantity": 1}]
        assert order({"items": items})["total"] == 0.3
        assert order({"items": items, "total": "1.5"})["total"] == 1.5
        assert order({"items": items, "total": 0})["total"] == 0

    def test_sums_the_prices_of_options_too(self) -> None:  # 25, voice-8
        size: JsonValue = {"name": "Taille", "choice": "Grande", "extra_price": 2}
        extra: JsonValue = {"name": "Extra", "choice": "Ail"}
        one: JsonValue = {"id": 3, "quantity": 1, "unit_price": 9.5, "selected_options": [size]}
        made = order({"items": [one]})
        assert (made["total"], made["items"][0]["totalPrice"]) == (11.5, 9.5)
        two: JsonValue = {"id": 3, "quantity": 2, "unit_price": 9.5, "selected_options": [size, extra, size]}
        assert order({"items": [one, two]})["total"] == 11.5 + 2 * 13.5
        assert order({"items": [one], "total": 10})["total"] == 10
        odd: JsonValue = {"name": "Extra", "extra_price": "on the house"}
        assert "total" not in order({"items": [{"id": 3, "unit_price": 1, "selected_options": [odd]}]})

    def test_has_no_sum_where_a_price_is_missing(self) -> None:  # V10
        assert "total" not in order({"items": [{"id": 3, "unit_price": 1}, {"id": 12}]})

    @pytest.mark.parametrize(
        ("check", "ready"),
        [
            ({"estimatedTimeISO": "2026-11-20T19:30:00Z"}, "2026-11-20T19:30:00Z"),
            ({"estimatedTime": "20:30"}, "2026-11-20T19:30:00Z"),
            ({"estimatedTimeISO": "", "estimatedTime": "18:59"}, "2026-11-21T17:59:00Z"),
            ({"estimatedTime": "soon"}, None),
            ({}, None),
            (None, None),
            ("20:30", None),
        ],
    )
    def test_is_ready_when_the_last_check_said(self, check: JsonValue, ready: str | None) -> None:  # V10
        assert order({"items": [{"id": 3}]}, last_availability_check=check).get("estimatedReadyAt") == ready

    @pytest.mark.parametrize(("items", "accepted"), WRONG_ITEMS)
    def test_that_cannot_be_right_is_refused(self, items: JsonValue, accepted: str) -> None:  # V10
        with pytest.raises(BodyRefused, match=accepted):
            order({"items": items})

    def test_without_a_menu_is_refused(self) -> None:  # V10
        with pytest.raises(BodyRefused, match="not on the menu"):
            order({"items": [{"id": 3}]}, item_map=None)


class TestAReservation:
    ARGS: Mapping[str, JsonValue] = {
        "customer_name": "Jean",
        "party_size": 4,
        "reservation_time": "20:00",
        "seating_preference": "window",
        "notes": "birthday",
    }

    def test_is_put_together_from_the_arguments_and_the_call(self) -> None:  # V10
        assert reservation(dict(self.ARGS), customer_id="cu-1") == {
            "restaurantId": "r-1",
            "callId": "c-1",
            "customerId": "cu-1",
            "customerName": "Jean",
            "customerPhone": "+33612345678",
            "partySize": 4,
            "reservationTime": "2026-11-20T19:30:00Z",
            "status": "confirmed",
            "seatingPreference": "window",
            "notes": "birthday",
        }

    @pytest.mark.parametrize(
        ("asked", "time"),
        [
            ("20:00", "2026-11-20T19:00:00Z"),
            ("19:00", "2026-11-20T18:00:00Z"),
            ("18:59", "2026-11-21T17:59:00Z"),
        ],
    )
    def test_without_a_check_takes_the_next_such_time_in_paris(self, asked: str, time: str) -> None:  # V10
        made = reservation({"reservation_time": asked}, last_availability_check=None)
        assert made["reservationTime"] == time

    @pytest.mark.parametrize("asked", [None, "", "24:00", "20:60", "eight", "20", 20, ["20:00"], "20:00:00"])
    def test_without_a_time_is_refused(self, asked: JsonValue) -> None:  # V10
        with pytest.raises(BodyRefused, match="HH:MM"):
            reservation({"reservation_time": asked}, last_availability_check={})


class TestTheNextTime:
    @pytest.mark.parametrize(
        ("now", "shown", "moment"),
        [
            ("2026-07-01T10:00:00+00:00", "20:00", "2026-07-01T18:00:00Z"),
            ("2026-11-20T18:00:00+00:00", "19:00", "2026-11-20T18:00:00Z"),
            ("2026-11-20T18:00:01+00:00", "19:00", "2026-11-21T18:00:00Z"),
            ("2026-11-20T23:30:00+00:00", "0:45", "2026-11-20T23:45:00Z"),
            ("2026-12-31T22:30:00+00:00", "9:00", "2027-01-01T08:00:00Z"),
            # The clocks go back on 2026-10-25 at 03:00: 02:30 comes twice.
            ("2026-10-25T00:00:00+00:00", "02:30", "2026-10-25T00:30:00Z"),
            ("2026-10-25T00:45:00+00:00", "02:30", "2026-10-25T01:30:00Z"),
            ("2026-10-24T21:00:00+00:00", "12:00", "2026-10-25T11:00:00Z"),
            # They go forward on 2027-03-28 at 02:00: 02:30 does not come.
            ("2027-03-28T00:00:00+00:00", "02:30", "2027-03-29T00:30:00Z"),
            ("2027-03-27T02:00:00+00:00", "02:30", "2027-03-29T00:30:00Z"),
        ],
    )
    def test_is_when_the_clocks_show_it_next(self, now: str, shown: str, moment: str) -> None:  # V10
        assert next_time(shown, datetime.fromisoformat(now)) == moment

    @given(
        st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
        st.integers(0, 23),
        st.integers(0, 59),
    )
    def test_shows_it_and_is_the_first_to_come(self, now: datetime, hour: int, minute: int) -> None:  # V10
        found = next_time(f"{hour:02}:{minute:02}", now)
        assert found is not None
        moment = datetime.fromisoformat(found)
        assert (moment.astimezone(PARIS).hour, moment.astimezone(PARIS).minute) == (hour, minute)
        assert moment >= now
        while (moment := moment - timedelta(minutes=30)) >= now:
            local = moment.astimezone(PARIS)
            assert (local.hour, local.minute) != (hour, minute)


def build_mine(args: object, ctx: object, session: object) -> dict[str, JsonValue]:
    return {"mine": True}


NOT_A_BUILDER = 5


class TestInstalledBuilders:
    @staticmethod
    def installed(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
        points = EntryPoints(EntryPoint(name, value, body_builders.ENTRY_POINTS) for name, value in entries)

        def entry_points(*, group: str) -> EntryPoints:
            return points.select(group=group)

        monkeypatch.setattr(body_builders, "entry_points", entry_points)

    def test_stand_beside_those_that_come_along(self, monkeypatch: pytest.MonkeyPatch) -> None:  # V10
        self.installed(monkeypatch, ("mine", f"{__name__}:build_mine"))
        builders = installed_builders(lambda: NOW)
        assert set(builders) == {"confirm_order", "confirm_reservation", "mine"}
        assert built_body(builders, "mine", {}, {}, None) == {"mine": True}

    @pytest.mark.parametrize(
        ("entry", "code"),
        [
            (("confirm_order", f"{__name__}:build_mine"), "body_builder_twice"),
            (("mine", "no_such_package.at_all:build"), "body_builder_missing"),
            (("mine", f"{__name__}:nothing"), "body_builder_missing"),
            (("mine", f"{__name__}:NOT_A_BUILDER"), "body_builder_invalid"),
        ],
    )
    def test_that_cannot_be_used_stop_the_start(
        self, monkeypatch: pytest.MonkeyPatch, entry: tuple[str, str], code: str
    ) -> None:  # V10
        self.installed(monkeypatch, entry)
        with pytest.raises(CallTheOperator) as caught:
            installed_builders(lambda: NOW)
        assert caught.value.code == code

    def test_are_none_without_packages(self) -> None:  # V10
        assert set(installed_builders(lambda: NOW)) == {"confirm_order", "confirm_reservation"}

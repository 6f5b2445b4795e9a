"""The designers' use cases over a store (F6, F7, F27, F43)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from flow_engine.errors import CallTheOperator, LookElsewhere, ReloadAndDecide, RetryLater
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.flow_store import FlowRecord, StoredVersion
from flow_engine.use_cases.flow_service import ATTEMPTS
from flow_engine.use_cases.publishing import LATEST, find_tag
from flows.sqlite_store import MEMORY, SqliteDatabase, SqliteVersionStore
from tests.flow_engine.use_cases.flow_service_scene import (
    KEY,
    T0,
    AlwaysSlower,
    Overtaken,
    Scene,
    open_scene,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene() as opened:
        yield opened


class TestFlows:
    async def test_a_created_flow_is_there_with_nothing_in_it(self, scene: Scene) -> None:  # F27
        flow_id = await scene.create(name="Bookings", campaign="c7")
        expected = FlowRecord(flow_id, "Bookings", "c7", "1.0.0", "anna", T0)
        assert await scene.flow_service.get_flow("t", flow_id) == expected

    async def test_flows_are_listed_by_name_campaign_and_channel(self, scene: Scene) -> None:  # F27
        late, early, other = [
            await scene.create(name=name, campaign=campaign)
            for name, campaign in (("b", "c"), ("a", "c"), ("c", "d"))
        ]
        await scene.save(early, "v1", channels=("mail",))
        await scene.save(other, "v2", channels=("mail",))

        async def ids(campaign_id: str | None, channel: str | None) -> list[str]:
            flows = await scene.flow_service.list_flows("t", campaign_id=campaign_id, channel=channel)
            return [flow.flow_id for flow in flows]

        assert await ids(None, None) == [early, late, other]
        assert await ids("c", None) == [early, late]
        assert await ids(None, "mail") == [early, other]
        assert await ids("c", "mail") == [early]
        assert await ids("c", "phone") == []

    async def test_a_renamed_flow_tells_who_and_when(self, scene: Scene) -> None:  # F27
        flow_id = await scene.create()
        scene.clock.time += timedelta(hours=1)
        assert await scene.rename(flow_id, "New") == FinalReply(200, b"at 2")
        flow = await scene.flow_service.get_flow("t", flow_id)
        assert (flow.name, flow.updated_by, flow.updated_at) == ("New", "bruno", T0 + timedelta(hours=1))


class TestVersions:
    async def test_a_saved_version_is_found_by_its_id_and_stands_under_its_tags(
        self, scene: Scene
    ) -> None:  # F6, F27
        flow_id = await scene.create()
        await scene.save(flow_id, "v1", tag="prod", document=b'{"_id": "v1" }')
        stored = StoredVersion("v1", flow_id, b'{"_id": "v1" }')
        assert await scene.flow_service.get_version_document("t", flow_id, "v1") == b'{"_id": "v1" }'
        assert await scene.flow_service.find_version("t", "v1") == stored
        assert [row["tag"] for row in await scene.flow_service.list_versions("t", flow_id)] == [
            "prod",
            LATEST,
        ]

    async def test_a_moved_tag_leads_to_the_other_version(self, scene: Scene) -> None:  # F6
        flow_id = await scene.create()
        await scene.save(flow_id, "v1", tag="prod")
        await scene.save(flow_id, "v2", "v1")
        await scene.move(flow_id, "prod", "v2")
        assert find_tag(await scene.flow_service.get_flow("t", flow_id), "prod").version_id == "v2"

    async def test_a_version_of_another_flow_is_unknown_in_this_one(self, scene: Scene) -> None:  # F27
        one, other = await scene.create(), await scene.create()
        await scene.save(one, "v1")
        with pytest.raises(LookElsewhere, match="version_unknown"):
            await scene.flow_service.get_version_document("t", other, "v1")
        with pytest.raises(LookElsewhere, match="version_unknown"):
            await scene.move(other, "prod", "v1")

    async def test_an_id_that_another_flow_has_used_is_refused_and_changes_nothing(
        self, scene: Scene
    ) -> None:  # F7
        one, other = await scene.create(), await scene.create()
        await scene.save(one, "v1")
        with pytest.raises(ReloadAndDecide, match="version_exists"):
            await scene.save(other, "v1")
        assert await scene.flow_service.list_versions("t", other) == []
        assert (await scene.flow_service.find_version("t", "v1")).flow_id == one

    async def test_a_refused_save_writes_no_document(self, scene: Scene) -> None:  # F7
        flow_id = await scene.create()
        await scene.save(flow_id, "v1", tag="prod")
        with pytest.raises(ReloadAndDecide, match="tag_in_use"):
            await scene.save(flow_id, "v2", "v1", "prod")
        assert scene.versions.inserts == ["v1"]

    async def test_a_lost_document_needs_the_operator(self, scene: Scene) -> None:  # F7
        flow_id = await scene.create()
        await scene.save(flow_id, "v1")
        database = SqliteDatabase(MEMORY)
        await database.open()
        scene.versions.inner = SqliteVersionStore(database)
        with pytest.raises(CallTheOperator, match="version_document_missing"):
            await scene.flow_service.get_version_document("t", flow_id, "v1")
        await database.close()


class TestTenants:
    async def test_everything_of_another_tenant_is_unknown(self, scene: Scene) -> None:  # F43
        flow_id = await scene.create("a")
        await scene.save(flow_id, "v1", tenant="a")
        assert await scene.flow_service.list_flows("b") == ()
        with pytest.raises(LookElsewhere, match="version_unknown"):
            await scene.flow_service.find_version("b", "v1")
        for use in (
            scene.flow_service.get_flow("b", flow_id),
            scene.flow_service.list_versions("b", flow_id),
            scene.flow_service.get_version_document("b", flow_id, "v1"),
            scene.move(flow_id, "prod", "v1", tenant="b"),
            scene.save(flow_id, "v2", tenant="b"),
        ):
            with pytest.raises(LookElsewhere, match="flow_unknown"):
                await use

    async def test_tenants_may_use_the_same_key_and_the_same_version_id(self, scene: Scene) -> None:  # F43
        of_a, of_b = await scene.create("a", key=KEY), await scene.create("b", key=KEY)
        assert of_a != of_b
        await scene.save(of_a, "v1", tenant="a", document=b"a")
        await scene.save(of_b, "v1", tenant="b", document=b"b")
        assert (await scene.flow_service.find_version("a", "v1")).document == b"a"


class TestACrashBetweenTheTwoWrites:
    async def test_before_the_first_write_nothing_is_there(self, scene: Scene) -> None:  # F7
        flow_id = await scene.create()
        scene.versions.fail = True
        with pytest.raises(RetryLater):
            await scene.save(flow_id, "v1")
        assert await scene.versions.get("t", "v1") is None
        assert await scene.flow_service.list_versions("t", flow_id) == []

    async def test_between_them_nothing_is_visible(self, scene: Scene) -> None:  # F7
        flow_id = await scene.create()
        await scene.save(flow_id, "v0")
        before = await scene.flow_service.get_flow("t", flow_id)
        scene.flows.fail = "before"
        with pytest.raises(RetryLater):
            await scene.save(flow_id, "v1", "v0", "prod")
        assert await scene.versions.get("t", "v1") is not None
        assert await scene.flow_service.get_flow("t", flow_id) == before
        with pytest.raises(LookElsewhere, match="version_unknown"):
            await scene.flow_service.find_version("t", "v1")
        with pytest.raises(LookElsewhere, match="version_unknown"):
            await scene.flow_service.get_version_document("t", flow_id, "v1")
        with pytest.raises(LookElsewhere, match="version_unknown"):
            await scene.move(flow_id, "prod", "v1")

    async def test_the_same_document_can_be_saved_after_it(self, scene: Scene) -> None:  # F7
        flow_id = await scene.create()
        scene.flows.fail = "before"
        with pytest.raises(RetryLater):
            await scene.save(flow_id, "v1")
        await scene.save(flow_id, "v1")
        assert await scene.tags(flow_id) == {LATEST: "v1"}

    async def test_another_document_cannot_take_the_id_of_the_one_left_behind(
        self, scene: Scene
    ) -> None:  # F7
        flow_id = await scene.create()
        scene.flows.fail = "before"
        with pytest.raises(RetryLater):
            await scene.save(flow_id, "v1", document=b"one")
        with pytest.raises(ReloadAndDecide, match="version_exists"):
            await scene.save(flow_id, "v1", document=b"two")
        assert await scene.flow_service.list_versions("t", flow_id) == []

    async def test_after_them_the_version_is_there_with_its_tags(self, scene: Scene) -> None:  # F7
        flow_id = await scene.create()
        scene.flows.fail = "after"
        with pytest.raises(RetryLater):
            await scene.save(flow_id, "v1", tag="prod", key=KEY)
        assert await scene.tags(flow_id) == {LATEST: "v1", "prod": "v1"}
        assert await scene.save(flow_id, "another id", tag="prod", key=KEY) == FinalReply(201, b"v1 at 2")


class TestManyAtOnce:
    async def test_of_many_saves_over_one_parent_exactly_one_takes_latest(self, scene: Scene) -> None:  # F6
        flow_id = await scene.create()
        await scene.save(flow_id, "v")
        results = await asyncio.gather(
            *(scene.save(flow_id, f"v{number}", "v") for number in range(12)), return_exceptions=True
        )
        won = [number for number, result in enumerate(results) if isinstance(result, FinalReply)]
        lost = [result for result in results if isinstance(result, ReloadAndDecide)]
        assert len(won) == 1
        assert [error.code for error in lost] == ["parent_not_latest"] * 11
        assert await scene.tags(flow_id) == {LATEST: f"v{won[0]}"}

    @pytest.mark.parametrize("key", [None, KEY])
    async def test_a_save_that_the_very_same_one_overtakes_leaves_its_document(
        self, scene: Scene, key: IdempotencyKey | None
    ) -> None:  # F7 F15
        flow_id = await scene.create()
        overtaken = Overtaken(scene.flows.inner, first=lambda: scene.save(flow_id, "v1", key=key))
        scene = Scene(overtaken, scene.versions, scene.clock)
        [result] = await asyncio.gather(scene.save(flow_id, "v1", key=key), return_exceptions=True)
        assert result == FinalReply(201, b"v1 at 2") or isinstance(result, ReloadAndDecide)
        assert await scene.flow_service.get_version_document("t", flow_id, "v1") == b"{}"
        assert await scene.tags(flow_id) == {LATEST: "v1"}

    async def test_the_id_of_a_save_that_was_too_late_may_be_used_again(self, scene: Scene) -> None:  # A14
        flow_id = await scene.create()
        await scene.save(flow_id, "v")
        results = await asyncio.gather(
            *(scene.save(flow_id, f"v{number}", "v") for number in range(12)), return_exceptions=True
        )
        newest = next(f"v{number}" for number, result in enumerate(results) if isinstance(result, FinalReply))
        for number, result in enumerate(results):
            if isinstance(result, ReloadAndDecide):
                await scene.save(flow_id, f"v{number}", newest, document=b"merged")
                newest = f"v{number}"
        assert await scene.tags(flow_id) == {LATEST: newest}

    async def test_changes_at_once_lose_nothing(self, scene: Scene) -> None:  # F7
        flow_id = await scene.create()
        await scene.save(flow_id, "v", tag="prod")
        await scene.save(flow_id, "w", "v")
        numbers = range(6)
        await asyncio.gather(
            *(scene.save(flow_id, f"v{number}", "v", f"t{number}") for number in numbers),
            *(scene.move(flow_id, f"m{number}", "v") for number in numbers),
            *(scene.rename(flow_id, f"name {number}") for number in numbers),
        )
        expected = {f"t{number}": f"v{number}" for number in numbers} | {
            f"m{number}": "v" for number in numbers
        }
        assert await scene.tags(flow_id) == {"prod": "v", LATEST: "w", **expected}
        assert (await scene.flow_service.get_flow("t", flow_id)).revision == 3 + 18
        for number in numbers:
            assert (await scene.flow_service.find_version("t", f"v{number}")).flow_id == flow_id

    async def test_who_is_never_fast_enough_is_told_so(self, scene: Scene) -> None:  # F15
        flow_id = await scene.create()
        slower = Scene(AlwaysSlower(scene.flows.inner), scene.versions, scene.clock)
        with pytest.raises(ReloadAndDecide, match="flow_changed_meanwhile"):
            await slower.save(flow_id, "v1")
        assert slower.versions.inserts == ["v1"] * ATTEMPTS
        assert await scene.versions.get("t", "v1") is None
        assert await scene.flow_service.list_versions("t", flow_id) == []

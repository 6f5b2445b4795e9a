"""The memory over HTTP (F19, F32)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.harness import Scene, clinic, entry, open_scene

pytestmark = pytest.mark.anyio
DESCRIBED = [{"name": "Day", "value": "Monday"}]


async def dump(scene: Scene) -> Any:
    reply = await scene.http.get("/v1/memory/conv-1")
    assert reply.status_code == 200
    return reply.json()


async def variable(scene: Scene, var_id: str) -> Any:
    return next(v for v in (await dump(scene))["vars"] if v["varId"] == var_id)


async def put(scene: Scene, raw: bytes) -> Any:
    return await scene.http.put("/v1/memory/conv-1", content=raw)


def raw_entry(var: str, value: str) -> bytes:
    return (
        f'[{{"updatedBy":"findVisit","contactId":"call-1","varId":"{var}","value":{value},'
        '"descriptionForLLM":[{"name":"Day","value":"Monday"}]}]'
    ).encode()


class TestWriting:
    async def test_a_batch_is_stored_whole_and_counts_as_one_revision(self) -> None:
        async with open_scene(clinic()) as scene:
            started = await scene.started()
            first = await scene.written(
                entry("var_string", "Ada"), entry("appointment", {"id": 1}, descriptionForLLM=DESCRIBED)
            )
            assert first == {"revision": started["revision"], "memoryRevision": 1}  # F32
            assert (await scene.written(entry("size", 42)))["memoryRevision"] == 2
            assert (await dump(scene))["memoryRevision"] == 2

    async def test_the_server_stamps_the_time_whatever_was_sent(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            scene.clock.advance(minutes=1, milliseconds=5)
            await scene.written(entry("var_string", "Ada", updatedAt="1999-01-01T00:00:00Z"))
            assert await variable(scene, "var_string") == {  # F17, F19
                "varId": "var_string",
                "name": "a string",
                "type": "string",
                "value": "Ada",
                "updatedBy": "findVisit",
                "updatedAt": "2026-01-15T09:31:00.005000Z",
                "contactId": "call-1",
                "descriptionForLLM": None,
                "provenance": {
                    "source": "tool",
                    "messageId": None,
                    "at": "2026-01-15T09:31:00.005000Z",
                    "superseded": None,
                },
            }

    async def test_a_name_is_accepted_for_the_id(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("a number", 3))
            assert (await variable(scene, "var_number"))["value"] == 3  # F5

    async def test_null_takes_the_tools_value_back(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("appointment", [1], descriptionForLLM=DESCRIBED))
            await scene.written(entry("appointment", None, updatedBy="cancelVisit"))
            taken = await variable(scene, "var_custom")
            assert (taken["value"], taken["descriptionForLLM"]) == (None, None)  # F19

    async def test_a_value_without_the_field_value_is_no_way_to_take_one_back(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            body = {key: value for key, value in entry("size", 1).items() if key != "value"}
            reply = await scene.write(body)
            assert reply.status_code == 422  # F19
            assert [error["pointer"] for error in reply.json()["errors"]] == ["/0/value"]


class TestRefusing:
    async def test_one_bad_entry_refuses_the_batch_and_every_error_is_told(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.write(
                entry("var_string", "stays out"),
                entry("nowhere", 1),
                entry("var_number", "four"),
                entry("var_boolean", True, contactId="call-9"),
                entry("size", "S", updatedBy="convMiner"),
                entry("appointment", {"id": 1}),
                entry("a string", "twice"),
                entry("var_date", "tomorrow", updatedBy=" ", contactId="call-9"),
            )
            problem = reply.json()
            assert (reply.status_code, problem["code"]) == (422, "memory_invalid")  # F19
            assert {(error["pointer"], error["code"]) for error in problem["errors"]} == {
                ("/1/varId", "variable_unknown"),
                ("/2/value", "number_expected"),
                ("/3/contactId", "contact_unknown"),
                ("/4/updatedBy", "updated_by_reserved"),
                ("/5/descriptionForLLM", "description_required"),
                ("/6/varId", "variable_twice"),
                ("/7/value", "date_invalid"),
                ("/7/updatedBy", "updated_by_missing"),
                ("/7/contactId", "contact_unknown"),
            }
            after = await dump(scene)
            assert after["memoryRevision"] == 0
            assert all(v["value"] is None for v in after["vars"])

    @pytest.mark.parametrize("sender", ["convMiner", "CONVMINER", " convminer "])
    async def test_nobody_writes_as_the_miner(self, sender: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert (await scene.write(entry("size", "S", updatedBy=sender))).status_code == 422  # F19

    async def test_every_breach_of_the_bodys_shape_is_told(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.http.put(
                "/v1/memory/conv-1", json=[{"updatedBy": 1, "contactId": "", "descriptionForLLM": [{}]}, 7]
            )
            assert (reply.status_code, reply.json()["code"]) == (422, "body_invalid")  # F19
            assert {error["pointer"] for error in reply.json()["errors"]} == {
                *("/0/updatedBy", "/0/contactId", "/0/varId", "/0/value"),
                *("/0/descriptionForLLM/0/name", "/0/descriptionForLLM/0/value", "/1"),
            }

    async def test_a_breach_of_the_shape_hides_none_of_the_other_entries(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            lacking = {"updatedBy": "findVisit", "contactId": "call-1", "varId": "nowhere"}
            reply = await scene.http.put(
                "/v1/memory/conv-1",
                json=[entry("var_date", "tomorrow"), lacking, entry("nowhere", 1), entry("size", "S"), 7],
            )
            assert (reply.status_code, reply.json()["code"]) == (422, "body_invalid")  # F19
            assert [(error["pointer"], error["code"]) for error in reply.json()["errors"]] == [
                *(("/1/value", "missing"), ("/4", "model_type")),
                *(("/0/value", "date_invalid"), ("/2/varId", "variable_unknown")),
            ]
            sound = await scene.http.put("/v1/memory/conv-1", json=[entry("size", "S"), lacking])
            assert [error["pointer"] for error in sound.json()["errors"]] == ["/1/value"]
            unknown = await scene.http.put("/v1/memory/nobody", json=[entry("size", "S"), lacking])
            assert (unknown.status_code, unknown.json()["code"]) == (422, "body_invalid")
            assert (await dump(scene))["memoryRevision"] == 0

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            *((b"[]", 422), (b"{}", 422), (b"null", 422), (b"", 400), (b"[", 400), (b"\xff", 400)),
            *((b"[" * 100_000, 400), (b'[{"a":' * 500, 400)),
        ],
    )
    async def test_what_is_no_batch_is_refused(self, body: bytes, status: int) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert (await put(scene, body)).status_code == status  # F19

    async def test_what_a_tool_found_for_a_contact_before_the_conversation_began_anew_is_refused(
        self,
    ) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.started(contactId="call-2")
            reply = await scene.write(entry("var_string", "of the first caller"))
            assert (reply.status_code, reply.json()["errors"][0]["code"]) == (422, "contact_unknown")  # F19
            await scene.written(entry("var_string", "of the second", contactId="call-2"))

    async def test_an_unknown_conversation_is_404_and_a_closed_one_409(self) -> None:
        async with open_scene(clinic()) as scene:
            assert (await scene.write(entry("size", "S"))).status_code == 404  # F32
            await scene.started()
            await scene.end()
            reply = await scene.write(entry("size", "S"))
            assert (reply.status_code, reply.json()["code"]) == (409, "conversation_closed")
            assert (await scene.http.get("/v1/memory/conv-1")).status_code == 200


class TestNumbersAndTexts:
    @pytest.mark.parametrize("var", ["var_number", "var_custom"])
    @pytest.mark.parametrize("value", ["0", "-1.5", "18446744073709551615", "-9223372036854775808", "1e15"])
    async def test_a_number_that_fits_comes_back_exactly(self, var: str, value: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert (await put(scene, raw_entry(var, value))).status_code == 200  # F21
            assert (await variable(scene, var))["value"] == (
                float(value) if {".", "e"} & {*value} else int(value)
            )

    @pytest.mark.parametrize("var", ["var_number", "var_custom", "var_string", "size", "nowhere"])
    @pytest.mark.parametrize(
        "value",
        [
            "1e400",
            "-1e400",
            "123456789012345678901234567890",
            "-9223372036854775809",
            "1e30",
            "NaN",
            "Infinity",
            "-Infinity",
            '{"deep":[1e400]}',
            "[123456789012345678901234567890]",
            '"\\ud800"',
            '{"\\udfff":1}',
            "1" * 5000,
        ],
        ids=lambda value: value[:20],
    )
    async def test_any_other_is_refused_and_never_a_500(self, var: str, value: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await put(scene, raw_entry(var, value))
            assert reply.status_code in (400, 422), reply.text  # F21
            assert reply.json()["errors"]
            assert (await dump(scene))["memoryRevision"] == 0

    @pytest.mark.parametrize("value", ['"1e400"', '"0.1000000000000000055511151231257827"', '"1_000"'])
    async def test_text_for_a_number_is_exact_or_refused(self, value: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert (await put(scene, raw_entry("var_number", value))).status_code == 422  # F21

    @pytest.mark.parametrize(
        "number",
        [
            *("9007199254740993.0", "12345678901234567.0", "123456789012345678.5", "0.1234567890123456789"),
            *(
                "1e-400",
                "9007199254740993e0",
                "12345678.123456789012",
                "4.9e-324",
                "1.23456789E-320",
                "1e-9" + "9" * 30,
            ),
            "1." + "0" * 400,
        ],
    )
    async def test_a_number_is_exact_or_refused_as_its_text_is(self, number: str) -> None:
        """A JSON reader would make another number of each, without a word."""
        async with open_scene(clinic()) as scene:
            await scene.started()
            for var, value in (("var_number", number), ("var_custom", f'{{"deep":[1, {number}]}}')):
                reply = await put(scene, raw_entry(var, value))
                told = [(error["pointer"], error["code"]) for error in reply.json()["errors"]]
                assert (reply.status_code, told) == (422, [("/0/value", "number_inexact")])  # F21
            assert (await dump(scene))["memoryRevision"] == 0
            assert (await put(scene, raw_entry("var_string", f'"{number}"'))).status_code == 200

    async def test_what_is_known_of_a_contact_may_have_more_digits_than_a_float(self) -> None:
        """No value of a variable: a division of another system refuses nobody's call."""
        facts = '{"rate":3.3333333333333333,"at":[45.12345678901234567]}'
        ids = '"contactId":"call-1","conversationId":"conv-1"'
        version = '"conversationalFlowVersionId":"version-1","channel":"phone"'
        said = f'"messageId":"m-1","ts":"2026-01-15T09:31:00Z","type":"system","src":"bot","body":{facts}'
        async with open_scene(clinic()) as scene:
            for route, body in (
                ("handle-new-contact", f'{{{ids},{version},"contact":{facts},"tenant":{facts}}}'),
                ("handle-utterance", f"{{{ids},{said}}}"),
            ):
                reply = await scene.http.post(f"/v1/{route}", content=body.encode())
                assert reply.status_code == 200, reply.text  # F21

    @pytest.mark.parametrize(
        "number",
        ["0.30000000000000004", "1234567890.123456", "0.000000000000000001", "2.0e-300", "5e-324", "0e-999"],
    )
    async def test_a_long_number_that_a_float_holds_is_kept(self, number: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert (await put(scene, raw_entry("var_number", number))).status_code == 200  # F21
            assert (await variable(scene, "var_number"))["value"] == float(number)

    async def test_any_text_comes_back_as_it_was(self) -> None:
        text = "a|b\\c\n\u2028è 日本 🏥\x00{{ $vars.x }}"
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("var_string", text))
            assert (await variable(scene, "var_string"))["value"] == text  # F21
            assert "|a string||a\\|b\\\\c\\n\\u2028è 日本 🏥\\u0000" in (await scene.prompt())["prompt"]


class TestReading:
    async def test_the_dump_has_the_tenant_and_every_variable_in_order(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started(tenant={"timezone": "Europe/Rome", "deep": {"a": [1, None]}})
            read = await dump(scene)
            assert read.keys() == {"tenant", "vars", "revision", "memoryRevision"}  # F32
            assert read["tenant"] == {
                "campaignId": "campaign-1",
                "timezone": "Europe/Rome",
                "deep": {"a": [1, None]},
            }
            assert [v["varId"] for v in read["vars"]] == [
                *(
                    "var_string",
                    "var_number",
                    "var_boolean",
                    "var_date",
                    "var_phone",
                    "var_enum",
                    "var_custom",
                ),
            ]

    async def test_reads_leave_the_expiry_and_a_write_moves_all_of_it(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.say("m-1", "hello")
            client = scene.memory.driver.client
            keys = [key async for key in client.scan_iter("{default:conv-1}::*")]
            for key in keys:
                await client.expire(key, 100)
            await dump(scene)
            await scene.prompt()
            assert max([await client.ttl(key) for key in keys]) <= 100  # F32
            await scene.written(entry("size", "S"))
            assert min([await client.ttl(key) for key in keys]) > 86_000  # F16

    async def test_an_unknown_conversation_is_404(self) -> None:
        async with open_scene(clinic()) as scene:
            reply = await scene.http.get("/v1/memory/conv-9")
            assert (reply.status_code, reply.json()["code"]) == (404, "conversation_unknown")  # F32

    async def test_a_phone_number_takes_the_region_of_the_conversations_language(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started(language="it-IT")
            await scene.written(entry("var_phone", "347 1234567"))
            assert (await variable(scene, "var_phone"))["value"] == {  # F5
                "country": "IT",
                "type": "mobile",
                "number": "+393471234567",
            }

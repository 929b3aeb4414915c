"""Batches run, end, expire, are cancelled and continued by another gateway, in virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from openai.types import Batch

from serving.errors import EngineError, OverloadedError, UnavailableError
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.core.batches import BatchLimits
from serving.values.sequence import BACKGROUND_PRIORITY
from tests.gateway.api.batch_scene import BatchGateway, BatchScene, Json, jsonl, line, play
from tests.gateway.api.support import check

SETTINGS = ApiSettings(batch=BatchLimits(requests=4))
MANY = [line(f"c{number}", prompt=f"The dog {number}") for number in range(20)]


def slow(gateway: BatchGateway, delay_s: float = 1.0) -> None:
    """Each line takes a few times `delay_s`."""
    gateway.harness.script_of = lambda _: gateway.harness.say("Once upon a time", delay_s=delay_s)


def ids(lines: list[Json]) -> list[str]:
    return sorted(one["custom_id"] for one in lines)


async def ran(gateway: BatchGateway, name: str, count: int) -> Json:
    """Wait until so many lines of a batch have been sent by this gateway."""
    async with asyncio.timeout(3600):
        while len(gateway.harness.backend.jobs) < count:  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0.1)
    return await gateway.batch(name)


def test_a_batch_from_file_to_results(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        name = await gateway.create([line("a"), line("b", max_tokens=10**6), line("c", temperature=0)])
        first = await gateway.batch(name)
        Batch.model_validate(first, strict=False)
        assert (first["status"], first["request_counts"]["total"]) == ("validating", 0)
        done = await gateway.until(name, "completed")
        assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"] <= done["expires_at"]
        assert (done["errors"], done["metadata"]) == (None, None)
        output, errors = await gateway.results(done)
        assert ids(output) == ["a", "c"]
        assert {one["response"]["body"]["choices"][0]["text"] for one in output} == {"Once upon a time"}
        assert all(one["error"] is None and one["response"]["status_code"] == 200 for one in output)
        [wrong] = errors
        assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("b", 400)
        assert wrong["response"]["body"]["error"]["code"] == "context_length_exceeded"

    play(served, story)


def test_lines_run_behind_all_others_and_few_at_once(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        slow(gateway)
        gateway.busy = True
        name = await gateway.create(MANY)
        await asyncio.sleep(30)
        assert (await gateway.batch(name))["status"] == "in_progress"
        assert not gateway.harness.backend.jobs, "others wait at this gateway"
        gateway.busy = False
        most = 0
        while (await gateway.batch(name))["status"] == "in_progress":
            most = max(most, sum(not one.ended for one in gateway.harness.backend.generations))
            await asyncio.sleep(0.3)
        assert most == 4
        [spec, *_] = gateway.harness.backend.jobs[0].sequences
        assert (spec.priority, spec.namespace) == (BACKGROUND_PRIORITY, "default")
        assert len((await gateway.results(await gateway.until(name, "completed")))[0]) == 20

    play(served, story, SETTINGS)


@pytest.mark.parametrize("lines_before", [1, 5, 9, 20])
def test_another_gateway_continues_where_results_end(served: ServedModel, lines_before: int) -> None:
    async def story(scene: BatchScene) -> None:
        first, second = scene.gateway(), scene.gateway()
        second.busy = True
        slow(first)
        slow(second)
        name = await first.create(MANY)
        await ran(first, name, lines_before)
        first.freeze()
        second.busy = False
        done = await second.until(name, "completed")
        assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        output, errors = await second.results(done)
        assert (ids(output), errors) == (ids(MANY), [])
        jobs = [*first.harness.backend.jobs, *second.harness.backend.jobs]
        seeds = {(one.sequences[0].prompt, one.sequences[0].sampling.seed) for one in jobs}
        assert len(seeds) == 20, "a line that runs again has the same seed"
        assert len(jobs) <= 20 + 4, "what has a result does not run again"
        first.thaw()  # it believes that it still runs the batch
        await asyncio.sleep(60)
        assert await second.results(await second.batch(name)) == (output, errors)

    play(served, story, SETTINGS)


def test_a_gateway_that_stops_hands_over_at_once(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        first, second = scene.gateway(), scene.gateway()
        slow(first)
        name = await first.create(MANY)
        await ran(first, name, 6)
        await first.runner.stop()
        assert [one.cancelled for one in first.harness.backend.generations].count(True) <= 4
        before = asyncio.get_running_loop().time()
        done = await second.until(name, "completed")
        assert asyncio.get_running_loop().time() - before < 5.0, "no lease had to run out"
        assert ids((await second.results(done))[0]) == ids(MANY)

    play(served, story, SETTINGS)


def test_what_did_not_run_within_the_window_is_in_the_error_file(
    served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.gateway.live.batch_runner.POLL_S", 3600.0)  # a day has many polls

    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        backend, say = gateway.harness.backend, gateway.harness.say
        gateway.harness.script_of = lambda _: say("Once", hang_after=None if len(backend.jobs) < 3 else 0)
        name = await gateway.create(MANY)
        done = await gateway.until(name, "expired", every_s=1800)
        assert done["expired_at"] >= done["expires_at"] == done["created_at"] + 86_400
        output, errors = await gateway.results(done)
        assert (len(output), len(errors)) == (2, 18)
        assert ids(output + errors) == ids(MANY)
        assert {(one["response"], one["error"]["code"]) for one in errors if one["error"]} == {(None, "batch_expired")}
        assert done["request_counts"] == {"total": 20, "completed": 2, "failed": 18}

    day = replace(SETTINGS.files, lease_s=3600.0)
    play(served, story, replace(SETTINGS, request_timeout_s=10**6, files=day, batches=day))


def test_a_cancelled_batch_keeps_its_results(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        slow(gateway)
        name = await gateway.create(MANY)
        await ran(gateway, name, 9)
        reply = await gateway.ask("POST", f"/v1/batches/{name}/cancel")
        assert (reply.status_code, reply.json()["status"]) == (200, "cancelling")
        assert (await gateway.ask("POST", f"/v1/batches/{name}/cancel")).status_code == 200, "as often as one likes"
        done = await gateway.until(name, "cancelled")
        assert done["cancelling_at"] <= done["cancelled_at"]
        assert done["completed_at"] is None
        output, errors = await gateway.results(done)
        assert 5 <= len(output) < 20
        assert errors == []
        assert any(one.cancelled for one in gateway.harness.backend.generations), "lines that run are stopped"
        check(await gateway.ask("POST", f"/v1/batches/{name}/cancel"), 409, None, "batch_ended", "is cancelled")

    play(served, story, SETTINGS)


def test_results_on_their_way_to_the_store_count(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        gateway.files.slow_s = 4.0
        name = await gateway.create(MANY)
        await ran(gateway, name, 9)
        await gateway.ask("POST", f"/v1/batches/{name}/cancel")
        done = await gateway.until(name, "cancelled")
        output, _ = await gateway.results(done)
        assert len(set(ids(output))) == len(output) == done["request_counts"]["completed"] < 20

    play(served, story, SETTINGS)


def test_a_damaged_item_stops_no_other(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        await scene.batches.add("default", "batch_x", b"{", "")
        name = await gateway.create([line("a")])
        await asyncio.sleep(5)
        assert not gateway.task.done()
        await scene.batches.delete("default", "batch_x")
        assert (await gateway.until(name, "completed"))["request_counts"]["completed"] == 1

    play(served, story, SETTINGS)


@pytest.mark.parametrize("error", [OverloadedError("full", retry_after_s=3.0), UnavailableError("no instance")])
def test_lines_wait_for_capacity(served: ServedModel, error: Exception) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        gateway.harness.backend.refuse = error
        name = await gateway.create(MANY)
        await asyncio.sleep(300)
        assert (await gateway.batch(name))["request_counts"] == {"total": 20, "completed": 0, "failed": 0}
        gateway.harness.backend.refuse = None
        done = await gateway.until(name, "completed")
        assert done["request_counts"]["completed"] == 20

    play(served, story, SETTINGS)


def test_a_line_that_fails_each_time_is_an_error_in_the_end(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        gateway.harness.script_of = lambda _: gateway.harness.say("Once", fail_after=0, error=EngineError("broken"))
        done = await gateway.until(await gateway.create([line("a")]), "completed")
        _, [error] = await gateway.results(done)
        assert error["response"]["status_code"] == 500
        assert len(gateway.harness.backend.jobs) == 3

    play(served, story, SETTINGS)


BAD_LINES: dict[str, tuple[Callable[[Json], object], str, str | None]] = {
    "no JSON": (lambda _: "{", "invalid_json_line", None),
    "no object": (lambda _: "[]", "invalid_line", None),
    "no custom_id": (lambda one: one.pop("custom_id"), "invalid_line", None),
    "an empty custom_id": (lambda one: one.update(custom_id=""), "invalid_custom_id", "custom_id"),
    "an id twice": (lambda one: one.update(custom_id="first"), "duplicate_custom_id", "custom_id"),
    "another method": (lambda one: one.update(method="GET"), "invalid_method", "method"),
    "another url": (lambda one: one.update(url="/v1/chat/completions"), "mismatched_url", "url"),
    "no body": (lambda one: one.pop("body"), "invalid_line", None),
    "a stream": (lambda one: one["body"].update(stream=True), "invalid_body", "body.stream"),
    "in the background": (lambda one: one["body"].update(background=True), "invalid_body", "body.background"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_file_with_a_bad_line_is_not_run(served: ServedModel, kind: str) -> None:
    change, code, param = BAD_LINES[kind]

    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        bad = line("bad")
        changed = change(bad)
        text = changed if isinstance(changed, str) and changed in ("{", "[]") else None
        content = jsonl([line("first")]) + b"\n" + (text.encode() + b"\n" if text else jsonl([bad])) + jsonl(MANY)
        done = await gateway.until(await gateway.create(content), "failed")
        [error] = done["errors"]["data"]
        assert (error["code"], error["param"], error["line"]) == (code, param, 3)
        assert "line 3" in error["message"]
        assert not gateway.harness.backend.jobs
        assert (done["output_file_id"], done["error_file_id"]) == (None, None)
        files = (await gateway.ask("GET", "/v1/files")).json()["data"]
        assert [one["purpose"] for one in files] == ["batch"], "its unused files are gone"
        check(await gateway.ask("POST", f"/v1/batches/{done['id']}/cancel"), 409)

    play(served, story, SETTINGS)


def test_only_so_many_lines_and_errors(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        for content, code in ((jsonl(MANY[:11]), "too_many_lines"), (b"\n \n", "empty_file")):
            done = await gateway.until(await gateway.create(content), "failed")
            assert [one["code"] for one in done["errors"]["data"]] == [code]
        scene.settings = replace(SETTINGS, batch=BatchLimits())
        other = scene.gateway()
        gateway.task.cancel()
        done = await other.until(await other.create(b"{\n" * 100), "failed")
        assert len(done["errors"]["data"]) == 20

    play(served, story, replace(SETTINGS, batch=BatchLimits(lines=10)))


def test_the_input_of_a_running_batch_cannot_be_deleted(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        slow(gateway)
        name = await gateway.create(MANY)
        file_id = (await ran(gateway, name, 1))["input_file_id"]
        check(await gateway.ask("DELETE", f"/v1/files/{file_id}"), 409, None, "file_in_use", name)
        await gateway.until(name, "completed")
        reply = await gateway.ask("DELETE", f"/v1/files/{file_id}")
        assert reply.json() == {"id": file_id, "object": "file", "deleted": True}

    play(served, story, SETTINGS)


@pytest.mark.parametrize("started", [False, True])
def test_a_batch_without_its_input_fails(served: ServedModel, started: bool) -> None:
    """The input may have expired while no gateway ran the batch."""

    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        slow(gateway)
        if not started:
            gateway.runner._stopping = True
        name = await gateway.create(MANY)
        file_id = (await gateway.batch(name))["input_file_id"]
        if started:
            await ran(gateway, name, 6)
            await gateway.runner.stop()
        await scene.files.delete("default", file_id)
        other = scene.gateway()
        done = await other.until(name, "failed")
        assert [one["code"] for one in done["errors"]["data"]] == ["input_file_not_found"]
        assert len((await other.results(done))[0]) == done["request_counts"]["completed"]
        assert bool(done["output_file_id"]) == started

    play(served, story, SETTINGS)


def test_a_batch_whose_results_find_no_room_fails_and_keeps_what_it_has(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        done = await gateway.until(await gateway.create(MANY), "failed")
        assert [one["code"] for one in done["errors"]["data"]] == ["storage_full"]
        assert 0 < len((await gateway.results(done))[0]) < 20

    play(served, story, replace(SETTINGS, files=replace(SETTINGS.files, size_bytes=6000)))


def test_a_result_is_stored_once_although_the_store_did_not_answer(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        name = await gateway.create(MANY)
        gateway.files.lost = [UnavailableError("no answer") for _ in range(5)]
        gateway.batches.lost = [UnavailableError("no answer")]
        done = await gateway.until(name, "completed")
        assert not gateway.files.lost
        assert ids((await gateway.results(done))[0]) == ids(MANY)

    play(served, story, SETTINGS)


def test_a_batch_whose_output_is_lost_ends(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        slow(gateway)
        name = await gateway.create(MANY)
        await ran(gateway, name, 2)
        for file_id, item in (await scene.files.items("default")).items():
            if item.state != "closed":
                await scene.files.delete("default", file_id)
        done = await gateway.until(name, "failed")
        assert [one["code"] for one in done["errors"]["data"]] == ["results_lost"]
        assert len(gateway.harness.backend.jobs) < 2 * len(MANY)

    play(served, story, SETTINGS)


def test_batches_wait_for_each_other(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        slow(gateway)
        names = [await gateway.create(MANY) for _ in range(3)]
        await ran(gateway, names[0], 4)
        assert sorted([(await gateway.batch(name))["status"] for name in names]) == [
            "in_progress", "in_progress", "validating"
        ]  # fmt: skip
        for name in names:
            done = await gateway.until(name, "completed")
            assert done["request_counts"]["completed"] == 20

    play(served, story, SETTINGS)

"""Batches run, end, expire, are cancelled and continued by another gateway, in virtual time."""

from openai.types import Batch

from serving.gateway.api.settings import ServedModel
from tests.gateway.api.batch_scene import BatchScene, line, play


def test_a_batch_from_file_to_results(served: ServedModel) -> None:
    async def story(scene: BatchScene) -> None:
        gateway = scene.gateway()
        lines = [line("a"), line("b", max_tokens=10**6), line("c", temperature=0)]
        name = await gateway.create(lines)
        first = await gateway.batch(name)
        Batch.model_validate(first, strict=False)
        assert (first["status"], first["request_counts"]["total"]) == ("validating", 0)
        done = await gateway.until(name, "completed")
        assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"] <= done["expires_at"]
        assert done["errors"] is None
        output, errors = await gateway.results(done)
        assert sorted(one["custom_id"] for one in output) == ["a", "c"]
        assert {one["response"]["body"]["choices"][0]["text"] for one in output} == {"Once upon a time"}
        assert all(one["error"] is None and one["response"]["status_code"] == 200 for one in output)
        [wrong] = errors
        assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("b", 400)
        assert wrong["response"]["body"]["error"]["code"] == "context_length_exceeded"

    play(served, story)

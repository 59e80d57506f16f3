"""GET and DELETE /jobs/{id}."""

import asyncio

import httpx
import pytest

from tests.support.scripted_worker import ScriptedWorker
from tests.support.sse import data_of, open_stream


async def test_a_running_job_shows_its_text_so_far_and_a_finished_one_its_result(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        await attempt.emit("B", "C")
        running = (await http.get(f"/jobs/{attempt.id}")).json()
        await attempt.finish("length")
        await stream.rest()
    finished = (await http.get(f"/jobs/{attempt.id}")).json()
    assert (running["status"], running["text"], running["usage"]["completion_tokens"]) == ("running", "ABC", 3)
    assert running["timing"]["total_ms"] is None
    assert (finished["status"], finished["text"], finished["finish_reason"]) == ("finished", "ABC", "length")
    assert finished["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert finished["timing"] == data_of(stream.seen[-1])["timing"]
    assert (finished["model"], finished["attempts"], finished["error"]) == ("test-model", 1, None)
    assert finished["created_at"] < finished["deadline_at"]


async def test_cancelling_a_queued_job_ends_it_now_and_can_be_repeated(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with open_stream(http) as stream:
        job_id = await only_job(worker)
        assert (await http.get(f"/jobs/{job_id}")).json()["status"] == "queued"
        for _ in range(2):
            response = await http.delete(f"/jobs/{job_id}")
            assert (response.status_code, response.json()) == (200, {"id": job_id, "status": "cancelled"})
        assert [event.event for event in await stream.rest()] == ["error"]
    assert data_of(stream.seen[0])["error"]["code"] == "cancelled"
    job = (await http.get(f"/jobs/{job_id}")).json()
    assert (job["status"], job["error"]["code"], job["text"]) == ("cancelled", "cancelled", "")


async def test_cancelling_a_running_job_takes_effect_at_its_next_step(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        assert (await http.delete(f"/jobs/{attempt.id}")).json()["status"] == "cancelling"
        assert (await attempt.emit("B")).name == "CANCELLED"
        await attempt.cancelled()
        assert await stream.text() == "A"
    assert data_of(stream.seen[-1])["error"]["code"] == "cancelled"
    job = (await http.get(f"/jobs/{attempt.id}")).json()
    assert (job["status"], job["text"]) == ("cancelled", "A")


async def test_cancelling_a_finished_job_changes_nothing(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with worker.answering("A"):
        job_id = (await http.post("/generate", json={"prompt": "x"})).json()["id"]
    assert (await http.delete(f"/jobs/{job_id}")).json()["status"] == "finished"
    assert (await http.get(f"/jobs/{job_id}")).json()["text"] == "A"


async def test_a_failed_job_tells_why(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(http.post("/generate", json={"prompt": "x"}))
    (attempt,) = await worker.take()
    await attempt.emit("A")
    await attempt.fail(message="the engine broke")
    await asking
    job = (await http.get(f"/jobs/{attempt.id}")).json()
    assert (job["status"], job["text"], job["error"]["message"]) == ("failed", "A", "the engine broke")


async def test_a_job_of_a_model_that_is_no_longer_served_can_be_read(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with worker.answering("A"):
        job_id = (await http.post("/generate", json={"prompt": "x"})).json()["id"]
    await worker.announce(age=10_000)
    assert (await http.get(f"/jobs/{job_id}")).json()["text"] == "A"


async def test_a_job_in_the_queue_of_another_model_is_found(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    other = ScriptedWorker(worker.client, model="org/other {1}")
    await other.announce()
    async with other.answering("A"):
        response = await http.post("/generate", json={"prompt": "x", "model": "org/other {1}"})
    job = (await http.get(f"/jobs/{response.json()['id']}")).json()
    assert (job["model"], job["text"]) == ("org/other {1}", "A")


@pytest.mark.parametrize("job_id", ["0" * 32, "nonsense", "*", "%00", "x" * 5000])
async def test_an_unknown_job_is_a_404(http: httpx.AsyncClient, worker: ScriptedWorker, job_id: str) -> None:
    for method in ("GET", "DELETE"):
        response = await http.request(method, f"/jobs/{job_id}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")


async def only_job(worker: ScriptedWorker) -> str:
    """Id of the only job there is."""
    (key,) = [key async for key in worker.client.scan_iter(match="*:job:*")]
    return str(key.rpartition(":")[2])

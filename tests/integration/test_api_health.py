"""GET /health/live and /health/ready, and the OpenAPI page."""

import httpx

from tests.support.eventually import eventually
from tests.support.scripted_worker import ScriptedWorker


async def test_readiness_follows_the_worker(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async def status() -> int:
        assert (await http.get("/health/live")).json() == {"status": "ok"}
        return (await http.get("/health/ready")).status_code

    async def is_ready() -> bool:
        return await status() == 200

    async def is_unready() -> bool:
        return await status() == 503

    await eventually(is_ready, "ready with a live worker")
    assert (await http.get("/health/ready")).json() == {"status": "ready", "models": ["test-model"]}
    await worker.announce(age=10_000)
    await eventually(is_unready, "not ready once the worker is silent")
    response = await http.get("/health/ready")
    assert response.json()["error"]["code"] == "no_worker"
    assert int(response.headers["retry-after"]) <= 120
    await worker.announce()
    await eventually(is_ready, "ready again")


async def test_the_api_describes_itself(http: httpx.AsyncClient) -> None:
    assert (await http.get("/docs")).status_code == 200
    schema = (await http.get("/openapi.json")).json()
    assert {"/generate", "/generate_stream", "/jobs/{job_id}", "/health/live", "/health/ready"} == set(schema["paths"])
    body = schema["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "prompts", "max_tokens", "temperature", "stop"} <= set(body["properties"])
    assert "text/event-stream" in schema["paths"]["/generate_stream"]["post"]["responses"]["200"]["content"]
    assert {"400", "404", "413", "429", "502", "503", "504"} <= set(schema["paths"]["/generate"]["post"]["responses"])

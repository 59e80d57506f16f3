"""What queue and relay add to a request: /generate of one token by the fake engine, beside /health/live, which is HTTP
alone; one request at a time, interleaved. Also: the pickup of a job by the idle worker, as the job's timing says.

    python -m bench.overhead [--requests 500]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from bench.local_server import local_server

WARM_UP = 50


def measure(client: httpx.Client, count: int) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of /generate, of /health/live, and queued_ms."""
    generate, live, queued = [], [], []
    for number in range(count + WARM_UP):
        start = time.perf_counter()
        client.get("/health/live").raise_for_status()
        middle = time.perf_counter()
        answer = client.post("/generate", json={"prompt": f"request {number}", "max_tokens": 1}).raise_for_status()
        end = time.perf_counter()
        if number >= WARM_UP:
            live.append((middle - start) * 1000)
            generate.append((end - middle) * 1000)
            queued.append(float(answer.json()["timing"]["queued_ms"]))
    return generate, live, queued


def describe(name: str, values: Sequence[float]) -> None:
    """One line: p50 and p99."""
    percentiles = statistics.quantiles(values, n=100)
    print(f"{name:28} p50 {percentiles[49]:7.2f} ms   p99 {percentiles[98]:7.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = {"FOREBAY_ENGINE": "fake", "FOREBAY_MODEL": "fake-model", "FOREBAY_DATA_DIR": directory}
        with local_server(Path(directory) / "log", **settings) as url, httpx.Client(base_url=url) as client:
            generate, live, queued = measure(client, options.requests)
    describe("/generate, one token", generate)
    describe("/health/live", live)
    describe("added by queue and relay", [ours - bare for ours, bare in zip(generate, live, strict=True)])
    describe("queued until picked up", queued)


if __name__ == "__main__":
    main()

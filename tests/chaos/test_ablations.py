"""The runs can fail: each of these copies of Forebay lacks one protection, and is caught."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.checker import CRASHED, check, count
from tests.chaos.report import report
from tests.chaos.run import Options, run_chaos
from tests.support.forebay_process import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Ablation:
    """`edits`: file, text, what stands there instead. `faults`: the kinds that bring it to light."""

    name: str
    edits: Sequence[tuple[str, str, str]]
    faults: Sequence[str]
    every: float = 1.0  # s between faults


EPOCH = "if job[1] ~= epoch or job[3] ~= 'running' then return {-1, 0} end"
XADD = """redis.call('XADD', log, seq .. '-0', 'type', 'token', 'epoch', epoch, 'tokens', ARGV[6], 'text', ARGV[7],
           'n', ARGV[4], 'hash', ARGV[5])
"""
ABLATIONS = [
    Ablation(
        "without the epoch check",
        [
            ("shared/scripts/emit.lua", EPOCH, ""),
            (
                "shared/scripts/emit.lua",
                "fields.epoch == epoch and fields.hash == ARGV[5] and fields.n == ARGV[4]",
                "true",
            ),
            ("shared/scripts/finish.lua", "if job[1] ~= epoch then return -1 end", ""),
            ("shared/scripts/renew.lua", "if job[1] ~= epoch then", "if not job[1] then"),
        ],
        ["worker_stop", "debug_sleep"],
    ),
    Ablation(
        "without the log: gaps are not read again",
        [
            ("api/relay.py", "page = await self._queue.read_log(self.job_id, max(0, self._seq - 1))", "page = []"),
            ("api/relay.py", "        if self._seq == 0:\n            return page\n", "        return page\n"),
        ],
        ["kill_pubsub"],
    ),
    Ablation(
        "without the check that an event continues the last one",
        [("api/relay.py", "previous_hash != self._hash or not self._continues(event)", "False")],
        ["kill_pubsub"],
    ),
    Ablation(
        "without the fork check",
        [
            ("api/relay.py", "previous_hash != self._hash or not self._continues(event)", "event.seq != self._seq + 1"),
            ("api/relay.py", "page[0].hash != self._hash or page[0].num_tokens != self._num_tokens", "False"),
            (
                "api/relay.py",
                "        return event.seq == self._seq + 1 and",
                "        return event.seq == self._seq + 1 or",
            ),
        ],
        ["redis_lost_tail"],
    ),
    Ablation(
        "without the suspect gate",
        [
            ("worker/consumer.py", "and not self._jobs.has_suspect", ""),
            ("shared/scripts/take.lua", "if class == 'suspect' and #taken > 0 then return taken end", ""),
            ("shared/scripts/take.lua", "class == 'suspect' and 1 or count - #taken", "count - #taken"),
        ],
        ["worker_kill"],
    ),
    Ablation(
        "without leases",
        [
            (
                "worker/leases.py",
                "            await self._tick(self._reap, interval)",
                "            await asyncio.sleep(60)",
            )
        ],
        ["worker_kill"],
    ),
    Ablation(
        "with MAXLEN on the job streams",
        [
            (
                "shared/scripts/enqueue.lua",
                "redis.call('XADD', stream, '*',",
                "redis.call('XADD', stream, 'MAXLEN', 8, '*',",
            )
        ],
        ["worker_kill"],
    ),
    Ablation(
        "with a new group that begins at the end",
        [
            (
                "shared/scripts/take.lua",
                "'XGROUP', 'CREATE', stream, GROUP, '0'",
                "'XGROUP', 'CREATE', stream, GROUP, '$'",
            )
        ],
        ["group_destroy"],
    ),
]


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.name)
async def test_what_the_protection_is_for(ablation: Ablation, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for package in ("api", "shared", "worker"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in ablation.edits:
        path = source / file
        text = path.read_text()
        assert old in text, f"{file} has changed: adapt this test"
        path.write_text(text.replace(old, new))
    directory = tmp_path / "run"
    directory.mkdir()
    options = Options(
        num_requests=400,
        minutes=0.5,
        seed=9,
        kinds=ablation.faults,
        every=ablation.every,
        heal_timeout=20,
        source=source,
    )
    history = await run_chaos(options, directory)
    violations = check(history)
    print(report(history, violations))
    assert sum(number for kind, number in count(violations).items() if kind != CRASHED) > 0, "nothing was noticed"

"""A short run with faults of all kinds. CHAOS_SEED repeats one."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.plan import fault_kinds
from tests.chaos.report import report
from tests.chaos.run import Options, run_chaos

SEED = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 31))
MIN_FAULTS = 60
IS_LOSSY = True


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_nothing_is_lost_doubled_or_mixed_whatever_dies(tmp_path: Path) -> None:
    print(f"CHAOS_SEED={SEED}")
    options = Options(num_requests=600, minutes=0.75, seed=SEED, kinds=fault_kinds(lossy=IS_LOSSY))
    history = await run_chaos(options, tmp_path)
    violations = check(history)
    print(report(history, violations))
    assert not violations
    assert len(history.faults) >= MIN_FAULTS

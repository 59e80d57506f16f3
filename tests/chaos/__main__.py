"""`make chaos`: exit code 1 if any promise was broken. A run is repeated with the same numbers and seed."""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.plan import FAULT_WEIGHTS, fault_kinds
from tests.chaos.report import report
from tests.chaos.run import Options, run_chaos
from tests.support.redis_server import SERVERS


def main() -> int:
    """Exit code."""
    arguments = _parser().parse_args()
    kinds = arguments.kinds.split(",") if arguments.kinds else fault_kinds(lossy=arguments.lossy)
    options = Options(
        arguments.requests, arguments.minutes, arguments.seed, kinds, every=arguments.every, redis_kind=arguments.server
    )
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="forebay-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, logs in {directory}", flush=True)
    history = asyncio.run(run_chaos(options, directory))
    violations = check(history)
    print(report(history, violations))
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10, help="over which the requests are spread")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="default: a random one")
    parser.add_argument("--every", type=float, default=0.4, help="seconds between faults, on average")
    parser.add_argument("--kinds", help=f"comma-separated, of: {', '.join(FAULT_WEIGHTS)}")
    parser.add_argument("--lossy", action="store_true", help="also faults in which Redis loses data")
    parser.add_argument("--server", choices=SERVERS, default="redis")
    parser.add_argument("--directory", type=Path, help="empty directory for data and logs; default: a temporary one")
    return parser


if __name__ == "__main__":
    sys.exit(main())

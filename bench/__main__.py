"""`make bench`: all benchmarks, one after the other. Each can be run alone: python -m bench.<name> --help"""

import subprocess
import sys

BENCHMARKS = ("engine", "overhead", "race")

for name in BENCHMARKS:
    print(f"\n== bench.{name}", flush=True)
    subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True)

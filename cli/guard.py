"""Ends a process group once the process that made it is gone, however it went (kill -9 too).

A script, standard library only: `guard.py LIFELINE MEMBERS GRACE`, started as the first process of its group. LIFELINE
is the reading end of a pipe whose other end only the maker holds; MEMBERS that of one whose other end every member
inherits; GRACE the seconds between SIGTERM and SIGKILL.
"""

import os
import select
import signal
import sys


def main(lifeline: int, members: int, grace: float) -> None:
    """Wait for the end of the lifeline, then for the members: politely first."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(lifeline, 1)  # nobody writes: it returns when the maker is gone
    os.killpg(0, signal.SIGTERM)
    select.select([members], [], [], grace)  # readable, at its end, when no member is left
    os.killpg(0, signal.SIGKILL)  # this process included


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))

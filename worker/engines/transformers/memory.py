"""How much memory is free, for the size of the KV cache."""

import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device (MPS shares the host's memory)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    limit = cgroup_headroom(CGROUP)
    return host_memory() if limit is None else min(limit, host_memory())


def host_memory() -> int:
    """Bytes that the system says are available. Free pages alone would not do: after a model was read from disk most of
    the memory holds its file, and is given up when asked for."""
    if MEMINFO.is_file():
        for line in MEMINFO.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # macOS does not say; half of the memory is a safe guess
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def cgroup_headroom(directory: Path) -> int | None:
    """Bytes up to the limit of the container (cgroup v2), page cache not counted; None without a limit."""
    try:
        limit = (directory / "memory.max").read_text("ascii").strip()
        current = int((directory / "memory.current").read_text("ascii"))
        stat = dict(line.split() for line in (directory / "memory.stat").read_text("ascii").splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - current + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0)))

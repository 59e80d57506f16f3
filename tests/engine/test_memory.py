"""Free memory inside a container."""

from pathlib import Path

from worker.engines.transformers.memory import cgroup_headroom, host_memory


def cgroup(directory: Path, limit: str) -> Path:
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text("700\n")
    (directory / "memory.stat").write_text("anon 400\ninactive_file 200\nactive_file 50\n")
    return directory


def test_the_limit_of_a_container_counts_without_its_page_cache(tmp_path: Path) -> None:
    assert cgroup_headroom(cgroup(tmp_path, "1000")) == 1000 - 700 + 250
    assert cgroup_headroom(cgroup(tmp_path, "100")) == 0


def test_no_limit(tmp_path: Path) -> None:
    assert cgroup_headroom(tmp_path) is None
    assert cgroup_headroom(cgroup(tmp_path, "max")) is None
    assert host_memory() > 1 << 20

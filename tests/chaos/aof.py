"""Takes the end off an append-only file, as a failover to a replica that lags does: whole commands, whole
transactions."""

from pathlib import Path


def cut_tail(directory: Path, *, share: float) -> None:
    """Cut `share` of the newest file's commands off its end."""
    path = max(directory.glob("*.incr.aof"), key=lambda file: file.stat().st_mtime)
    data = path.read_bytes()
    ends = transaction_ends(data)
    if ends:
        path.write_bytes(data[: ends[round((len(ends) - 1) * (1 - share))]])


def transaction_ends(data: bytes) -> list[int]:
    """Offsets right behind each complete command that is in no transaction, and behind each EXEC."""
    ends: list[int] = []
    at, is_inside = 0, False
    while (parsed := _command(data, at)) is not None:
        name, at = parsed
        if name == b"MULTI":
            is_inside = True
        elif name == b"EXEC":
            is_inside = False
        if not is_inside:
            ends.append(at)
    return ends


def _command(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Name of the command at `at`, and where it ends; None if there is no whole one."""
    try:
        if data[at : at + 1] == b"#":  # a timestamp annotation
            return b"#", data.index(b"\r\n", at) + 2
        if data[at : at + 1] != b"*":
            return None
        line = data.index(b"\r\n", at)
        count, at, name = int(data[at + 1 : line]), line + 2, b""
        for number in range(count):
            line = data.index(b"\r\n", at)
            size = int(data[at + 1 : line])
            if number == 0:
                name = data[line + 2 : line + 2 + size].upper()
            at = line + 2 + size + 2
    except ValueError:
        return None
    return (name, at) if at <= len(data) else None

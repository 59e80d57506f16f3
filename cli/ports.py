"""Ports of this machine."""

import socket

from shared.errors import ForebayError


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host` that nobody listens on now."""
    with socket.create_server((host, 0), family=_family(host)) as probe:
        return int(probe.getsockname()[1])


def require_free(host: str, port: int, setting: str) -> None:
    """Raise ForebayError, naming the setting, if `port` cannot be listened on."""
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ForebayError(f"cannot listen on {host}:{port} ({setting}): {reason}") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

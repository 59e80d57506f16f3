"""Asks a starting API whether jobs can be served."""

import http.client
import json
import urllib.error
import urllib.request


def is_ready(base_url: str, timeout: float = 2.0) -> tuple[bool, str]:
    """True when GET /health/ready answers 200; else the reason, as far as the API gives one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy knows nothing of this machine
    try:
        with opener.open(f"{base_url}/health/ready", timeout=timeout):
            return True, ""
    except urllib.error.HTTPError as error:
        with error:
            return False, _reason(error.read())
    except (OSError, http.client.HTTPException):
        return False, "the API is starting"


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "not ready yet"


def reachable_url(host: str, port: int) -> str:
    """The URL by which this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

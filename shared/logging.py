"""Log lines of every process: text for people, JSON for machines."""

import json
import logging
import sys
import time
from dataclasses import dataclass

from shared.settings import CommonSettings

QUIET = ("httpx", "httpcore", "huggingface_hub", "filelock")


class RepetitionFilter(logging.Filter):
    """An outage makes every request and every job complain in the same words: of equal warnings (the same place in the
    code) only the first few within `period` s pass; the next that passes says how many did not."""

    def __init__(self, *, limit: int = 3, period: float = 10.0) -> None:
        super().__init__()
        self._limit = limit
        self._period = period
        self._seen: dict[tuple[str, int], _Burst] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        burst = self._seen.setdefault((record.pathname, record.lineno), _Burst(record.created))
        if record.created - burst.since >= self._period:
            if burst.count > self._limit:
                record.msg = f"{record.msg} (and {burst.count - self._limit} more like this before)"
            burst.since, burst.count = record.created, 0
        burst.count += 1
        return burst.count <= self._limit


@dataclass(slots=True)
class _Burst:
    since: float
    count: int = 0


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(settings: CommonSettings) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    handler.addFilter(RepetitionFilter())
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)

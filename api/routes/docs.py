"""What the OpenAPI page says about responses."""

from typing import Any

from api.schemas.common import ErrorResponse

Responses = dict[int | str, dict[str, Any]]

_TEXTS = {
    400: "A field is wrong; `param` names it, the message says the limit",
    404: "No such model or job",
    409: "The job was cancelled by somebody else",
    413: "The body is too large",
    429: "The queue is full; try again after Retry-After seconds",
    502: "The engine failed on this job",
    503: "Nothing can serve now; try again after Retry-After seconds",
    504: "The job was not finished before its deadline",
}


def errors(*statuses: int) -> Responses:
    """Documentation of these error responses."""
    return {status: {"model": ErrorResponse, "description": _TEXTS[status]} for status in statuses}


REFUSALS = errors(*_TEXTS)

_EXAMPLE = """id: 1
event: token
data: {"id":"9f...","index":0,"token":260,"tokens":[260],"text":" the"}

: keep-alive

id: 2
event: done
data: {"id":"9f...","model":"m","finish_reason":"length","usage":{...},"timing":{...}}
"""

STREAM: Responses = {
    200: {
        "description": "`token` events, then one `done` or one `error` event. `id:` is the event's number in the "
        "job's log. Comments keep idle connections open.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}

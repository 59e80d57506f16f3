"""One tree of errors: everything Forebay raises on purpose derives from ForebayError."""


class ForebayError(Exception):
    """Base of all errors that Forebay raises on purpose; its text is fit to show to a user."""


class SettingsError(ForebayError):
    """A setting is unknown, malformed or contradicts another one."""


class ModelError(ForebayError):
    """A model cannot be found, loaded or served."""


class InvalidRequestError(ForebayError):
    """A request breaks a limit. `param` names the offending field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFullError(ForebayError):
    """The queue has no room for these jobs; `waiting` of `limit` jobs are queued already."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"the queue is full: {waiting} jobs are waiting, the limit is {limit}")
        self.waiting = waiting
        self.limit = limit


class JobNotFoundError(ForebayError):
    """No job of this id is known (never existed, or its result has expired)."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}: it never existed or its result has expired")


class RedisUnavailableError(ForebayError):
    """Redis does not answer, or answers that it cannot serve now."""

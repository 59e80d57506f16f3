"""Parts that several responses share."""

from pydantic import BaseModel, Field


class Usage(BaseModel):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Timing(BaseModel):
    """Milliseconds since the job was accepted, by Redis' clock; null: not reached."""

    queued_ms: int | None = Field(description="Until a worker took the job")
    first_token_ms: int | None = Field(description="Until the first token")
    total_ms: int | None = Field(description="Until the end")


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str = Field(description="invalid_request_error, rate_limit_error or server_error")
    param: str | None = Field(description="The offending field, if there is one")
    code: str | None = Field(description="Stable name of the error")


class ErrorResponse(BaseModel):
    """Body of every answer with status 4xx or 5xx."""

    error: ErrorObject

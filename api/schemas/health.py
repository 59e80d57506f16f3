"""Responses of /health."""

from pydantic import BaseModel, Field


class LiveResponse(BaseModel):
    """The process runs."""

    status: str = Field(examples=["ok"])


class ReadyResponse(BaseModel):
    """Jobs can be served."""

    status: str = Field(examples=["ready"])
    models: list[str] = Field(description="Models with a live worker")

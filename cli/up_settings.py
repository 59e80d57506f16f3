"""Settings of `forebay up`; the processes that it starts read their own."""

from pydantic import Field

from shared.settings import CommonSettings


class UpSettings(CommonSettings):
    """What `forebay up` reads, beside CommonSettings."""

    up_workers: int = Field(default=1, ge=1, le=64, description="Worker processes that `forebay up` starts")
    embedded_redis_port: int = Field(
        default=0, ge=0, le=65535, description="Port of the embedded Redis of `forebay up`; 0 takes a free one"
    )

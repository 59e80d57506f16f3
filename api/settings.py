"""Settings of an API process."""

from pydantic import Field

from shared.settings import CommonSettings


class ApiSettings(CommonSettings):
    """What an API process reads, beside CommonSettings."""

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    max_body_size: int = Field(default=4 << 20, ge=1024, description="Larger request bodies get 413")
    max_waiting_jobs: int = Field(default=1000, ge=1, description="Jobs waiting in a queue; beyond it: 429")
    max_prompts: int = Field(default=256, ge=1, le=4096, description="Prompts in one request")
    default_max_tokens: int = Field(default=128, ge=1, description="max_tokens of a request that names none")
    keep_alive_interval: float = Field(default=10, gt=0, le=60, description="Silence before a stream gets a comment")
    subscriber_buffer: int = Field(
        default=256,
        ge=1,
        description="Events held for a slow reader; beyond it the reader is served from the log",
    )
    watchdog_interval: float = Field(
        default=1.0, gt=0, le=30, description="A quiet stream looks into its log this often"
    )
    send_timeout: float = Field(default=60, gt=0, description="A reader that takes nothing for so long is cut off")
    shutdown_grace: float = Field(default=10, ge=0, le=3600, description="On SIGTERM, streams may go on for so long")

    @property
    def prompts_limit(self) -> int:
        """Prompts in one request: no more than an empty queue takes."""
        return min(self.max_prompts, self.max_waiting_jobs)

"""Settings of a worker. Names follow vLLM's where vLLM has the same thing."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from shared.settings import CommonSettings


class WorkerSettings(CommonSettings):
    """What a worker process reads, beside CommonSettings."""

    engine: Literal["transformers", "fake"] = Field(default="transformers", description="Which engine runs the model")
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto: cuda, else mps, else cpu"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="auto: bfloat16 where the device computes in it, else float32"
    )
    max_num_seqs: int = Field(default=32, ge=1, le=4096, description="Rows that run at once")
    max_num_batched_tokens: int = Field(
        default=512,
        ge=16,
        le=131_072,
        description="Most tokens in one forward step; longer prompts take several",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        description="Most tokens of prompt + output. Unset: the model's own, at most 4096",
    )
    kv_cache_memory: int | None = Field(
        default=None, ge=1 << 20, description="Bytes of KV cache. Unset: from the rows and the free memory"
    )
    num_threads: int | None = Field(default=None, ge=1, description="CPU threads of torch. Unset: torch's default")
    poll_interval: float = Field(
        default=0.5,
        gt=0,
        le=10,
        description="An idle worker looks for jobs this often even if it gets no wake hint",
    )
    max_pending_tokens: int = Field(
        default=4096, ge=1, description="The engine pauses when this many tokens wait for a slow Redis"
    )
    lease: float = Field(
        default=6, gt=0, le=600, description="A job whose worker does not renew it for so long goes to another worker"
    )
    stall_timeout: float = Field(
        default=60, gt=0, le=3600, description="A worker whose engine does not come round for so long gives up its jobs"
    )
    max_attempts: int = Field(
        default=3, ge=1, le=100, description="A job on which so many workers died before it made a token is given up"
    )
    drain_timeout: float = Field(
        default=5,
        ge=0,
        le=3600,
        description="On SIGTERM, running jobs may finish for this long; the rest is handed back",
    )
    fake_pieces: Path | None = Field(
        default=None,
        description="Engine fake: a JSON list of strings that its tokenizer knows as single tokens",
    )

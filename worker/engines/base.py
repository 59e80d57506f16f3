"""What the worker needs of an inference engine, and nothing more. Engines know tokens, never text or Redis."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.messages import SamplingParams


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine serves; fixed once it is loaded."""

    engine: str
    max_model_len: int  # prompt + output, in tokens
    max_num_seqs: int  # rows that can run at once
    vocab_size: int  # valid token ids are 0 .. vocab_size-1
    eos_token_ids: frozenset[int]
    tokenizer_json: str  # a Hugging Face `tokenizers` file: the API tokenises with it, the worker detokenises


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One row to run. `output_token_ids` are tokens made earlier (by a dead worker): they are prefilled with the
    prompt, counted as output by penalties and positions, and never returned again."""

    id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    seed: int  # resolved by the caller, so that a resumed row draws the same noise
    output_token_ids: Sequence[int] = field(default=())


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one row gained in a step: new token ids in order, or the error that ended this row alone."""

    id: str
    token_ids: Sequence[int] = ()
    error: str | None = None


class Engine(Protocol):
    """Continuous batching: rows join and leave at every step. All methods are called from one thread.

    An engine runs a row until it is told to stop: it emits EOS like any other token and knows no stop strings;
    the caller checks EOS, stops and lengths after every step and calls `abort` for rows that are done.
    (Tokens ruled out by `ignore_eos` or `min_tokens` are masked by the engine, before sampling.)
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def num_running(self) -> int:
        """Rows added and not aborted."""
        ...

    def can_add(self, request: EngineRequest) -> bool:
        """True if `add` would find room now (a free slot and memory for prompt + max_tokens)."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Start a row at the next step. Raises InvalidRequestError if it could never be served."""
        ...

    def abort(self, request_id: str) -> None:
        """Drop a row and free what it held, before the next step. Unknown ids are ignored."""
        ...

    def step(self) -> list[StepOutput]:
        """One batched forward over all rows (a bounded chunk of each prompt still in prefill, one token of each
        row in decode). Returns rows that gained tokens. [] if no row did. Raises if the forward as a whole failed:
        the caller then finds the culprit by running rows one by one."""
        ...

    def close(self) -> None:
        """Free device memory and threads."""
        ...

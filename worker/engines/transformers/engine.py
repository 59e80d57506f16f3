"""Forebay's own continuous batching over an unmodified Hugging Face causal LM."""

import torch

from shared.errors import InvalidRequestError
from worker.engines.base import EngineInfo, EngineRequest, StepOutput
from worker.engines.transformers.block_manager import BlockManager
from worker.engines.transformers.model_runner import ModelRunner
from worker.engines.transformers.sampler import Sampler
from worker.engines.transformers.scheduler import Row, Scheduler, num_tokens_of


class TransformersEngine:
    """Implements Engine."""

    def __init__(
        self,
        info: EngineInfo,
        *,
        runner: ModelRunner,
        sampler: Sampler,
        blocks: BlockManager,
        max_num_batched_tokens: int,
    ) -> None:
        self._info = info
        self._runner = runner
        self._sampler = sampler
        self._blocks = blocks
        self._scheduler = Scheduler(
            max_num_seqs=info.max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, blocks=blocks
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def num_running(self) -> int:
        return self._scheduler.num_rows

    @property
    def num_free_blocks(self) -> int:
        """KV-cache blocks that no row holds."""
        return self._blocks.num_free

    def can_add(self, request: EngineRequest) -> bool:
        """True also for a request that `add` will refuse: it need not wait for that."""
        return self._refusal(request) is not None or self._scheduler.can_add(request)

    def add(self, request: EngineRequest) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            raise refusal
        self._runner.place(self._scheduler.add(request))

    def abort(self, request_id: str) -> None:
        row = self._scheduler.remove(request_id)
        if row is not None and not row.is_sound:
            self._runner.cache.clear(row.blocks)

    def step(self) -> list[StepOutput]:
        chunks = self._scheduler.schedule()
        if not chunks:
            return []
        for chunk in chunks:
            chunk.row.is_sound = False
        logits, rows, _ = self._runner.run(chunks)
        tokens = self._sampler.sample(logits, rows) if rows else []
        for chunk in chunks:
            self._scheduler.computed(chunk)
        return [self._advance(row, token) for row, token in zip(rows, tokens, strict=True)]

    def _advance(self, row: Row, token: int | None) -> StepOutput:
        if token is None:
            self.abort(row.id)
            return StepOutput(row.id, error="the model's output is not finite")
        row.is_sound = True
        row.token_ids.append(token)
        return StepOutput(row.id, (token,))

    def close(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _refusal(self, request: EngineRequest) -> InvalidRequestError | None:
        """Why the request can never be served, if so."""
        if request.id in self._scheduler:
            return InvalidRequestError(f"a row {request.id!r} is running already")
        if not request.prompt_token_ids:
            return InvalidRequestError("the prompt has no tokens", "prompt")
        for token_id in (*request.prompt_token_ids, *request.output_token_ids):
            if not 0 <= token_id < self._info.vocab_size:
                return InvalidRequestError(f"token id {token_id} is not in 0..{self._info.vocab_size - 1}", "prompt")
        length = num_tokens_of(request)
        if length > self._info.max_model_len:
            return InvalidRequestError(
                f"prompt and max_tokens make {length} tokens, the model takes {self._info.max_model_len}", "max_tokens"
            )
        if self._blocks.blocks_for(length) > self._blocks.capacity:
            return InvalidRequestError(f"the KV cache does not hold {length} tokens", "max_tokens")
        return None

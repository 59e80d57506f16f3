"""Which tokens go into the next forward. Pure: no torch. A row is in prefill while more than one of its tokens is not
in the KV cache, afterwards in decode; after a resume the tokens made earlier are prefilled like a prompt."""

from dataclasses import dataclass, field

from shared.messages import SamplingParams
from worker.engines.base import EngineRequest
from worker.engines.transformers.block_manager import BlockManager


@dataclass(slots=True, eq=False)
class Row:
    """A running row. `index` is its line in the slot table, `blocks` hold its keys and values."""

    id: str
    index: int
    token_ids: list[int]  # prompt and output
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    blocks: list[int] = field(default_factory=list)
    max_length: int = 0  # tokens that it has room for
    num_computed: int = 0  # leading tokens whose keys and values are in the cache
    is_sound: bool = True  # what it wrote to the cache is finite, as its last logits tell

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """False too for a row that has all its tokens and waits to be removed."""
        return self.num_uncomputed == 1 and len(self.token_ids) < self.max_length

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start .. start+count-1` of a row go through the model in this step."""

    row: Row
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def is_decode(self) -> bool:
        """One token behind a cached context."""
        return self.count == 1 and self.start > 0

    @property
    def samples(self) -> bool:
        """Whether the next token follows from this chunk."""
        return self.end == len(self.row.token_ids)


class Scheduler:
    """Token budget: every row in decode gets its token, prompts share the rest in order of arrival."""

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, blocks: BlockManager) -> None:
        self._max_num_batched_tokens = max_num_batched_tokens
        self._blocks = blocks
        self._free_indices = list(range(max_num_seqs - 1, -1, -1))
        self._rows: dict[str, Row] = {}

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def can_add(self, request: EngineRequest) -> bool:
        """Room for the whole of prompt and output: a row that was admitted never runs out of blocks."""
        return bool(self._free_indices) and self._blocks.can_allocate(num_tokens_of(request))

    def add(self, request: EngineRequest) -> Row:
        """Admit a row; `can_add` must hold."""
        row = Row(
            id=request.id,
            index=self._free_indices.pop(),
            token_ids=[*request.prompt_token_ids, *request.output_token_ids],
            num_prompt_tokens=len(request.prompt_token_ids),
            sampling_params=request.sampling_params,
            seed=request.seed,
            blocks=self._blocks.allocate(num_tokens_of(request)),
            max_length=num_tokens_of(request),
        )
        self._rows[row.id] = row
        return row

    def __contains__(self, row_id: object) -> bool:
        return row_id in self._rows

    def remove(self, row_id: str) -> Row | None:
        """Free all that a row holds. Unknown ids are ignored."""
        row = self._rows.pop(row_id, None)
        if row is not None:
            self._blocks.free(row.blocks)
            self._free_indices.append(row.index)
        return row

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step: rows in decode first, then prompts within the budget."""
        decode = [Chunk(row, row.num_computed, 1) for row in self._rows.values() if row.is_decoding]
        budget = self._max_num_batched_tokens - len(decode)
        prefill = []
        for row in self._rows.values():
            if budget <= 0:
                break
            if row.num_uncomputed > 1:
                count = min(row.num_uncomputed, budget)
                prefill.append(Chunk(row, row.num_computed, count))
                budget -= count
        return decode + prefill

    def computed(self, chunk: Chunk) -> None:
        """The chunk's keys and values are in the cache."""
        chunk.row.num_computed = chunk.end


def num_tokens_of(request: EngineRequest) -> int:
    """Most tokens that a row can come to hold."""
    longest = len(request.prompt_token_ids) + request.sampling_params.max_tokens
    return max(longest, len(request.prompt_token_ids) + len(request.output_token_ids) + 1)

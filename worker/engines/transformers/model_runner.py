"""One forward over a step's chunks: a flat batch [1, tokens] of decode tokens and prompt chunks, logits only where the
next token is wanted."""

from collections.abc import Sequence
from itertools import groupby

import torch

from worker.engines.transformers.attention import ForwardContext, Group, forward_context
from worker.engines.transformers.block_manager import BLOCK_SIZE
from worker.engines.transformers.kv_cache import KVCache
from worker.engines.transformers.scheduler import Chunk, Row

MIN_TOKENS = 2  # a single token takes another path through the matrix kernels than a batch does: pad it


def length_class(length: int) -> int:
    """Context length up to which a row in decode is padded: at most a quarter more than it has, at least one block."""
    step = max(BLOCK_SIZE, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step


class ModelRunner:
    """Holds the model, its cache, and the slot table: int64 [rows, positions], where each position of a row lies."""

    def __init__(self, model: torch.nn.Module, cache: KVCache, *, max_num_seqs: int, max_model_len: int) -> None:
        self.cache = cache
        self._model = model
        self._device = next(model.parameters()).device
        width = length_class(max_model_len)
        self._slot_table = torch.zeros(max_num_seqs, width, dtype=torch.long, device=self._device)

    def place(self, row: Row) -> None:
        """Enter a new row's blocks into the slot table."""
        offsets = torch.arange(BLOCK_SIZE)
        slots = (torch.tensor(row.blocks)[:, None] * BLOCK_SIZE + offsets).flatten()
        line = self._slot_table[row.index]
        line.zero_()
        count = min(len(slots), len(line))
        line[:count] = slots[:count].to(self._device)

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> tuple[torch.Tensor, list[Row], ForwardContext]:
        """Logits [rows, vocabulary] of the rows that sample, those rows, and the context (what the step touched)."""
        chunks = sorted(chunks, key=_order)
        tokens = [token for chunk in chunks for token in chunk.row.token_ids[chunk.start : chunk.end]]
        positions = [position for chunk in chunks for position in range(chunk.start, chunk.end)]
        padding = [0] * max(0, MIN_TOKENS - len(tokens))
        position_ids = torch.tensor(positions + padding, device=self._device)
        context = ForwardContext(
            self.cache, self._write_slots(chunks, len(padding)), self._groups(chunks, position_ids)
        )
        wanted, rows = _last_tokens(chunks)
        with forward_context(context):
            output = self._model(
                input_ids=torch.tensor([tokens + padding], device=self._device),
                position_ids=position_ids[None],
                use_cache=False,
                logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=self._device),
            )
        return output.logits[0], rows, context

    def _write_slots(self, chunks: Sequence[Chunk], num_padding: int) -> torch.Tensor:
        parts = [self._slot_table[chunk.row.index, chunk.start : chunk.end] for chunk in chunks]
        return torch.cat([*parts, self._slot_table.new_zeros(num_padding)])

    def _groups(self, chunks: Sequence[Chunk], position_ids: torch.Tensor) -> list[Group]:
        groups, first = [], 0
        for (_, length), members in groupby(chunks, key=_group_of):
            rows = list(members)
            for part in [rows] if rows[0].is_decode else [[chunk] for chunk in rows]:
                group = self._group(part, first, length, position_ids)
                groups.append(group)
                first += group.num_tokens
        return groups

    def _group(self, chunks: Sequence[Chunk], first: int, length: int, position_ids: torch.Tensor) -> Group:
        size, count = len(chunks), chunks[0].count
        lines = torch.tensor([chunk.row.index for chunk in chunks], device=self._device)
        positions = position_ids[first : first + size * count].view(size, count)
        return Group(first, size, count, self._slot_table[lines, :length:BLOCK_SIZE] // BLOCK_SIZE, positions)


def _group_of(chunk: Chunk) -> tuple[bool, int]:
    """Decode rows of one length class attend together; a prompt's chunk attends alone."""
    return not chunk.is_decode, length_class(chunk.end) if chunk.is_decode else chunk.end


def _order(chunk: Chunk) -> tuple[bool, int]:
    is_prefill, length = _group_of(chunk)
    return is_prefill, 0 if is_prefill else length


def _last_tokens(chunks: Sequence[Chunk]) -> tuple[list[int], list[Row]]:
    """Indices in the batch of the tokens whose logits are wanted, and their rows."""
    wanted, rows, end = [], [], 0
    for chunk in chunks:
        end += chunk.count
        if chunk.samples:
            wanted.append(end - 1)
            rows.append(chunk.row)
    return wanted, rows

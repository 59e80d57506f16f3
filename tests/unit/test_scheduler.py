"""The scheduler and the block manager, without torch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages import SamplingParams
from worker.engines.base import EngineRequest
from worker.engines.transformers.block_manager import BLOCK_SIZE, SCRATCH_BLOCK, BlockManager
from worker.engines.transformers.scheduler import Chunk, Row, Scheduler


def request(row_id: str, num_prompt: int, max_tokens: int = 8, *, num_logged: int = 0) -> EngineRequest:
    return EngineRequest(row_id, [1] * num_prompt, SamplingParams(max_tokens), 0, [2] * num_logged)


def scheduler(*, rows: int = 4, budget: int = 16, blocks: int = 100) -> Scheduler:
    return Scheduler(max_num_seqs=rows, max_num_batched_tokens=budget, blocks=BlockManager(blocks))


def step(scheduler: Scheduler) -> list[Chunk]:
    """Run a step as the engine does; every row that samples gets token 3."""
    chunks = scheduler.schedule()
    for chunk in chunks:
        samples = chunk.samples
        scheduler.computed(chunk)
        if samples:
            chunk.row.token_ids.append(3)
    return chunks


def shape(chunks: list[Chunk]) -> list[tuple[str, int, int]]:
    return [(chunk.row.id, chunk.start, chunk.count) for chunk in chunks]


def test_a_prompt_goes_in_chunks_and_then_token_by_token() -> None:
    plan = scheduler(budget=16)
    plan.add(request("a", 40))
    assert [shape(step(plan)) for _ in range(5)] == [
        [("a", 0, 16)],
        [("a", 16, 16)],
        [("a", 32, 8)],
        [("a", 40, 1)],
        [("a", 41, 1)],
    ]


def test_only_the_last_chunk_of_a_prompt_samples() -> None:
    plan = scheduler(budget=16)
    row = plan.add(request("a", 20))
    assert [[chunk.end == len(chunk.row.token_ids) for chunk in plan.schedule()]] == [[False]]
    step(plan)
    assert row.num_output_tokens == 0
    step(plan)
    assert row.num_output_tokens == 1


def test_rows_in_decode_come_before_prompts() -> None:
    plan = scheduler(budget=16)
    plan.add(request("a", 4))
    step(plan)
    plan.add(request("b", 40))
    assert shape(step(plan)) == [("a", 4, 1), ("b", 0, 15)]
    assert shape(step(plan)) == [("a", 5, 1), ("b", 15, 15)]


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    plan = scheduler(budget=16)
    for name in "abc":
        plan.add(request(name, 10))
    assert shape(step(plan)) == [("a", 0, 10), ("b", 0, 6)]
    assert shape(step(plan)) == [("a", 10, 1), ("b", 6, 4), ("c", 0, 10)]


def test_a_resumed_row_prefills_what_was_generated_too() -> None:
    plan = scheduler()
    row = plan.add(request("a", 5, num_logged=3))
    assert shape(step(plan)) == [("a", 0, 8)]
    assert row.num_output_tokens == 4


def test_slots_limit_the_rows() -> None:
    plan = scheduler(rows=2)
    plan.add(request("a", 4))
    plan.add(request("b", 4))
    assert not plan.can_add(request("c", 4))
    plan.remove("a")
    plan.remove("a")
    assert plan.can_add(request("c", 4))
    assert plan.num_rows == 1


def test_blocks_limit_the_rows() -> None:
    plan = scheduler(blocks=1 + 4)
    plan.add(request("a", 40, 8))
    assert not plan.can_add(request("b", 16, 8))
    assert plan.can_add(request("c", 8, 8))
    plan.remove("a")
    assert plan.can_add(request("b", 16, 8))


@given(st.lists(st.tuples(st.integers(1, 70), st.booleans()), max_size=40))
def test_no_two_rows_share_a_slot_or_a_block(arrivals: list[tuple[int, bool]]) -> None:
    blocks = BlockManager(20)
    plan = Scheduler(max_num_seqs=4, max_num_batched_tokens=32, blocks=blocks)
    rows: list[Row] = []
    for number, (length, leaves) in enumerate(arrivals):
        if plan.can_add(request(str(number), length)):
            rows.append(plan.add(request(str(number), length)))
        if leaves and rows:
            plan.remove(rows.pop(0).id)
        held = [block for row in rows for block in row.blocks]
        assert len(held) == len(set(held))
        assert SCRATCH_BLOCK not in held
        assert len(held) + blocks.num_free == blocks.capacity
        assert len({row.index for row in rows}) == len(rows)
        assert sum(chunk.count for chunk in plan.schedule()) <= 32
    for row in rows:
        plan.remove(row.id)
    assert blocks.num_free == blocks.capacity == 19


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (BLOCK_SIZE, 1), (BLOCK_SIZE + 1, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockManager.blocks_for(tokens) == blocks

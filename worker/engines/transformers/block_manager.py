"""Which KV-cache blocks belong to whom. Pure: no torch."""

from collections.abc import Sequence

BLOCK_SIZE = 16  # tokens
SCRATCH_BLOCK = 0  # never given out: padding is written to it and read from it


class BlockManager:
    """Gives out blocks 1 .. num_blocks-1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, SCRATCH_BLOCK, -1))

    @staticmethod
    def blocks_for(num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // BLOCK_SIZE)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Blocks that can be given out at all."""
        return self.num_blocks - 1

    def can_allocate(self, num_tokens: int) -> bool:
        return self.blocks_for(num_tokens) <= self.num_free

    def allocate(self, num_tokens: int) -> list[int]:
        """Blocks for so many tokens; `can_allocate` must hold."""
        return [self._free.pop() for _ in range(self.blocks_for(num_tokens))]

    def free(self, blocks: Sequence[int]) -> None:
        """Take blocks back."""
        self._free.extend(reversed(blocks))

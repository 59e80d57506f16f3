"""The paged KV cache: for each layer one tensor of keys and one of values, [slots, kv_heads, head_dim], allocated once.
Slot s is position s % 16 of block s // 16. Layers are known after a first, tiny forward has shown their shapes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engines.transformers.block_manager import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one token needs in one layer."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVCache:
    """Keys and values by layer index."""

    def __init__(self, num_blocks: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self._num_slots = num_blocks * BLOCK_SIZE
        self._dtype = dtype
        self._device = device
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.shapes: dict[int, LayerShape] = {}

    def allocate(self, shapes: dict[int, LayerShape]) -> None:
        """Allocate all layers now, so that no step meets an out-of-memory."""
        for layer, shape in shapes.items():
            self._allocate(layer, shape)

    def layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer; `keys` and `values` [tokens, kv_heads, dim] show the shape of a new one."""
        found = self._layers.get(layer)
        if found is None:
            found = self._allocate(layer, LayerShape(keys.shape[1], keys.shape[2], values.shape[2]))
        return found

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold NaN or infinity: what is masked is still multiplied, by 0."""
        index = torch.tensor(blocks, dtype=torch.long, device=self._device)
        for tensor in (tensor for pair in self._layers.values() for tensor in pair):
            tensor.view(-1, BLOCK_SIZE, *tensor.shape[1:]).index_fill_(0, index, 0)

    @property
    def bytes_per_token(self) -> int:
        """Over all layers seen so far."""
        width = sum(shape.num_kv_heads * (shape.key_dim + shape.value_dim) for shape in self.shapes.values())
        return width * self._dtype.itemsize

    def _allocate(self, layer: int, shape: LayerShape) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer] = shape
        keys, values = (
            torch.zeros(self._num_slots, shape.num_kv_heads, dim, dtype=self._dtype, device=self._device)
            for dim in (shape.key_dim, shape.value_dim)
        )
        self._layers[layer] = (keys, values)
        return keys, values

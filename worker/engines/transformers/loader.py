"""From a model directory to a ready engine: load, measure, test, allocate, warm up."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from shared.errors import ModelError
from shared.messages import SamplingParams
from worker.engines.base import EngineInfo, EngineRequest
from worker.engines.transformers import attention
from worker.engines.transformers.block_manager import BLOCK_SIZE, BlockManager
from worker.engines.transformers.engine import TransformersEngine
from worker.engines.transformers.kv_cache import KVCache
from worker.engines.transformers.memory import free_memory
from worker.engines.transformers.model_runner import ModelRunner
from worker.engines.transformers.sampler import Sampler
from worker.engines.transformers.self_test import self_test
from worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

MAX_MODEL_LEN = 4096  # unless the settings ask for more
MEMORY_SHARE = 0.4  # of the free memory, for the KV cache
WARM_UP_BATCHES = (1, 4)


def load_engine(model_dir: Path, settings: WorkerSettings, progress: Callable[[str], None]) -> TransformersEngine:
    """Load the model in a local directory. Raises ModelError if it cannot be loaded or this engine cannot serve it."""
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    progress(f"loading {settings.model_name} ({str(dtype).removeprefix('torch.')} on {device})")
    model = load_model(model_dir, dtype, device)
    return build_engine(model, load_tokenizer(model_dir), settings, progress)


def build_engine(
    model: Any, tokenizer: "TokenizerFile", settings: WorkerSettings, progress: Callable[[str], None]
) -> TransformersEngine:
    """An engine over a loaded module. Raises ModelError if the module does not compute through the paged attention."""
    max_model_len = choose_model_len(settings.max_model_len, model.config)
    shapes = self_test(model, max_model_len)
    device, dtype = model.device, model.dtype
    bytes_per_token = shapes.bytes_per_token
    num_blocks = choose_num_blocks(settings, max_model_len, bytes_per_token, device)
    cache = KVCache(num_blocks, dtype=dtype, device=device)
    cache.allocate(shapes.shapes)
    progress(f"KV cache: {num_blocks * BLOCK_SIZE} tokens, {num_blocks * BLOCK_SIZE * bytes_per_token / 2**20:.0f} MiB")
    vocab_size = model.get_input_embeddings().num_embeddings
    eos_token_ids = eos_ids(model, tokenizer)
    info = EngineInfo(
        engine="transformers",
        max_model_len=max_model_len,
        max_num_seqs=settings.max_num_seqs,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        tokenizer_json=tokenizer.json,
    )
    runner = ModelRunner(model, cache, max_num_seqs=settings.max_num_seqs, max_model_len=max_model_len)
    num_tokens = min(vocab_size, tokenizer.num_tokens)
    engine = TransformersEngine(
        info,
        runner=runner,
        sampler=Sampler(
            num_tokens=num_tokens, eos_token_ids=sorted(eos_token_ids), device=device, unused=tokenizer.unused
        ),
        blocks=BlockManager(num_blocks),
        max_num_batched_tokens=max(settings.max_num_batched_tokens, settings.max_num_seqs),
    )
    warm_up(engine)
    return engine


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer as the `tokenizers` library stores it."""

    json: str
    num_tokens: int  # the largest id and 1
    eos_token_id: int | None
    unused: tuple[int, ...] = ()  # smaller ids that stand for nothing


def load_tokenizer(model_dir: Path) -> TokenizerFile:
    """Any tokenizer that transformers can express as a `tokenizers` file."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # transformers raises whatever its parts raise
        raise ModelError(f"{model_dir}: no usable tokenizer ({_line(error)})") from error
    backend.no_truncation()  # some files come with the limits of a training run: they would cut prompts
    backend.no_padding()
    ids = set(backend.get_vocab(with_added_tokens=True).values())
    num_tokens = max(ids) + 1
    unused = tuple(sorted(set(range(num_tokens)) - ids))
    return TokenizerFile(backend.to_str(), num_tokens, tokenizer.eos_token_id, unused)


def load_model(model_dir: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The module, in evaluation mode, with paged attention."""
    attention.register()
    disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(model_dir)
        if getattr(config, "is_encoder_decoder", False):
            raise ModelError(f"{model_dir}: {config.model_type} is an encoder-decoder model, not a causal one")
        model, loading = AutoModelForCausalLM.from_pretrained(
            model_dir, config=config, dtype=dtype, output_loading_info=True
        )
    except ModelError:
        raise
    except Exception as error:  # transformers raises whatever its parts raise
        raise ModelError(f"{model_dir}: cannot be loaded as a causal language model ({_line(error)})") from error
    if loading["missing_keys"]:  # transformers fills them with random numbers
        missing = sorted(loading["missing_keys"])
        raise ModelError(f"{model_dir}: the files lack {len(missing)} weights of the model, such as {missing[0]}")
    return model.to(device).eval()


def choose_device(name: str) -> torch.device:
    """auto: CUDA, else MPS, else CPU. Raises ModelError for a device that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not available[name.partition(":")[0]]:
        raise ModelError(f"FOREBAY_DEVICE={name}: this machine has no such device")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the device computes in it, float16 on MPS, else float32."""
    if name != "auto":
        found: torch.dtype = getattr(torch, name)
        return found
    if device.type == "mps":
        return torch.float16
    has_bf16 = torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def choose_model_len(wanted: int | None, config: Any) -> int:
    """The setting, or the model's own limit, at most MAX_MODEL_LEN."""
    limit = model_limit(config.get_text_config())
    if wanted is None:
        return min(limit or MAX_MODEL_LEN, MAX_MODEL_LEN)
    if limit and wanted > limit:
        raise ModelError(f"FOREBAY_MAX_MODEL_LEN={wanted}: the model's own limit is {limit}")
    return wanted


def model_limit(config: Any) -> int | None:
    """Tokens that the model takes. A longrope model turns all positions of a batch differently as soon as one row goes
    beyond the original length, so rows would change with their neighbours: such lengths are left out."""
    limits = [getattr(config, "max_position_embeddings", None)]
    parameters = getattr(config, "rope_parameters", None) or {}
    for kind in [parameters, *(kind for kind in parameters.values() if isinstance(kind, dict))]:
        if kind.get("rope_type") == "longrope":
            limits.append(kind.get("original_max_position_embeddings"))
    return min((limit for limit in limits if limit), default=None)


def choose_num_blocks(settings: WorkerSettings, max_model_len: int, bytes_per_token: int, device: torch.device) -> int:
    """Blocks for all rows at full length, or what the memory allows. Raises ModelError if one row does not fit."""
    block_bytes = bytes_per_token * BLOCK_SIZE
    per_row = BlockManager.blocks_for(max_model_len)
    memory = settings.kv_cache_memory or int(free_memory(device) * MEMORY_SHARE)
    num_blocks = min(memory // block_bytes, settings.max_num_seqs * per_row + 1)
    if num_blocks < per_row + 1:
        raise ModelError(
            f"a row of {max_model_len} tokens takes {(per_row + 1) * block_bytes} bytes of KV cache, {memory} are "
            "allowed: lower FOREBAY_MAX_MODEL_LEN or raise FOREBAY_KV_CACHE_MEMORY"
        )
    return num_blocks


def eos_ids(model: Any, tokenizer: TokenizerFile) -> frozenset[int]:
    """All ids that end a text, from the generation config, the config and the tokenizer."""
    found: set[int] = set()
    for source in (model.generation_config, model.config.get_text_config()):
        ids = getattr(source, "eos_token_id", None)
        found |= set(ids) if isinstance(ids, list | tuple) else {ids} if ids is not None else set()
    if not found and tokenizer.eos_token_id is not None:
        found = {tokenizer.eos_token_id}
    return frozenset(found)


def warm_up(engine: TransformersEngine) -> None:
    """Let kernels choose and allocate before the first request waits for it."""
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    length = min(32, engine.info.max_model_len - 2)
    for batch in WARM_UP_BATCHES:
        ids = [f"warm-up {number}" for number in range(min(batch, engine.info.max_num_seqs))]
        for row_id in ids:
            engine.add(EngineRequest(row_id, [0] * length, params, seed=0))
        for _ in range(2 + batch * length // 16):
            engine.step()
        for row_id in ids:
            engine.abort(row_id)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]

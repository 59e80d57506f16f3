"""From a model directory to an engine, and models that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    BloomConfig,
    GPTNeoConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from shared.errors import ModelError
from tests.engine.tiny import COMMON, model_of, prompts, reference, request, run, tiny_engine, tiny_model
from worker.engines.transformers import loader
from worker.engines.transformers.loader import load_engine
from worker.settings import WorkerSettings

SETTINGS = WorkerSettings(dtype="float32", device="cpu", max_model_len=64, max_num_seqs=4)


def save(model: Any, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    """A small byte-level tokenizer with a BOS that it adds itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2} | {char: number + 3 for number, char in enumerate(alphabet[:125])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<pad>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(directory)


def test_a_directory_becomes_an_engine(tmp_path: Path) -> None:
    model = tiny_model("llama")
    save(model, tmp_path)
    save_tokenizer(tmp_path)
    said: list[str] = []
    engine = load_engine(tmp_path, SETTINGS, said.append)
    assert said
    assert (engine.info.max_model_len, engine.info.max_num_seqs, engine.info.vocab_size) == (64, 4, 128)
    assert engine.info.eos_token_ids == {2}
    prompt = prompts(1)[0]
    assert run(engine, [request("a", prompt)])["a"] == reference(model, prompt, 12)
    ids = Tokenizer.from_str(engine.info.tokenizer_json).encode("abc").ids
    assert ids == AutoTokenizer.from_pretrained(tmp_path)("abc")["input_ids"]
    assert ids[0] == 1


def test_a_tokenizer_of_vocabulary_and_merges_files(tmp_path: Path) -> None:
    """As facebook/opt-125m has it."""
    save(tiny_model("opt"), tmp_path)
    vocab = {"<s>": 2, "<pad>": 1, "</s>": 0, "a": 3, "b": 4, "ab": 5, "Ġ": 6}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    options = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options | {"add_bos_token": True, "pad_token": "<pad>"}))
    engine = load_engine(tmp_path, SETTINGS, lambda _: None)
    ids = Tokenizer.from_str(engine.info.tokenizer_json).encode("ab a").ids
    assert ids == AutoTokenizer.from_pretrained(tmp_path)("ab a")["input_ids"]
    assert 5 in ids


def test_several_eos_ids_of_the_generation_config(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [2, 7]
    engine = tiny_engine(model)
    assert engine.info.eos_token_ids == {2, 7}


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=128, hidden_size=32, n_layer=2, n_head=4),
        GPTNeoConfig(
            vocab_size=128,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=128,
        ),
        MambaConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2),
    ],
    ids=lambda config: config.model_type,
)
def test_families_that_bypass_the_hook_are_refused(config: Any) -> None:
    with pytest.raises(ModelError, match=config.model_type):
        tiny_engine(model_of(config))


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, decoder_start_token_id=0)
    save(T5ForConditionalGeneration(config), tmp_path)
    with pytest.raises(ModelError, match="encoder-decoder"):
        load_engine(tmp_path, SETTINGS, lambda _: None)


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    save(tiny_model("llama"), tmp_path)
    with pytest.raises(ModelError, match="tokenizer"):
        load_engine(tmp_path, SETTINGS, lambda _: None)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    LlamaConfig(**COMMON).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_engine(tmp_path, SETTINGS, lambda _: None)


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match="256"):
        tiny_engine(tiny_model("llama"), max_model_len=300)


def test_a_cache_too_small_for_one_row_is_refused() -> None:
    config = LlamaConfig(**COMMON | {"num_hidden_layers": 8, "head_dim": 128, "max_position_embeddings": 4096})
    with pytest.raises(ModelError, match="FOREBAY_KV_CACHE_MEMORY"):
        tiny_engine(model_of(config), max_model_len=4096, kv_cache_memory=1 << 20)


def test_a_missing_device_is_refused() -> None:
    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(ModelError, match=missing):
        loader.choose_device(missing)


def test_two_models_do_not_switch_each_others_attention() -> None:
    model = tiny_model("llama")
    engine = tiny_engine(model)
    prompt = prompts(1)[0]
    assert reference(model, prompt, 5) == run(engine, [request("a", prompt, 5)])["a"]


def test_files_that_lack_a_weight_are_refused(tmp_path: Path) -> None:
    save(tiny_model("llama"), tmp_path)
    save_tokenizer(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj"):
        load_engine(tmp_path, SETTINGS, lambda _: None)


def test_tied_weights_are_not_missed(tmp_path: Path) -> None:
    save(model_of(LlamaConfig(**COMMON, tie_word_embeddings=True)), tmp_path)
    save_tokenizer(tmp_path)
    assert load_engine(tmp_path, SETTINGS, lambda _: None).info.vocab_size == 128


def test_a_tokenizer_that_cuts_and_pads_is_served_without_that(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    served = Tokenizer.from_str(loader.load_tokenizer(tmp_path).json)
    for text in ("abcdefghijkl", "a"):
        assert served.encode(text).ids == AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]


def test_ids_between_those_of_the_tokenizer_are_never_sampled(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 100}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    save(tiny_model("llama"), tmp_path)
    engine = load_engine(tmp_path, SETTINGS, lambda _: None)
    rows = [request(f"r{seed}", [0, 1], 20, temperature=2.0, seed=seed, ignore_eos=True) for seed in range(4)]
    assert {token for tokens in run(engine, rows).values() for token in tokens} == {0, 1, 100}


def llama4(chunk: int) -> Any:
    return Llama4TextConfig(
        **COMMON,
        intermediate_size_mlp=48,
        attention_chunk_size=chunk,
        num_local_experts=2,
        num_experts_per_tok=1,
        no_rope_layers=[1] * 4,
    )


def test_a_window_that_the_hook_is_not_told_of_is_refused_beyond_it() -> None:
    with pytest.raises(ModelError, match="32"):
        tiny_engine(model_of(llama4(32)), max_model_len=64)
    model = model_of(llama4(64))
    prompt = prompts(1, low=30)[0]
    found = run(tiny_engine(model, max_model_len=64), [request("a", prompt)])["a"]
    assert found == reference(model, prompt, 12)


def longrope(original: int) -> LlamaConfig:
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0}
    parameters = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original}
    return LlamaConfig(**COMMON, rope_parameters=parameters | factors)


def test_lengths_at_which_rows_would_change_their_neighbours_are_left_out() -> None:
    assert loader.choose_model_len(None, longrope(32)) == 32
    with pytest.raises(ModelError, match="32"):
        loader.choose_model_len(33, longrope(32))

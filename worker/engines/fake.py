"""An engine without a model, for tests, demos and load on the rest of the system.

A prompt that is a JSON object may have these options:

    {"script": ["ab", " c", 128, ...],   tokens: a piece of the vocabulary, other text byte by byte, or a token id
     "delay_ms": 0,                      every step in which the row runs takes so long
     "fail_at": 3,                       output token number 3 (from 1) is an error of this row instead
     "fail_step_at": 3,                  ... the whole forward raises instead
     "exit_at": 3,                       ... the process dies instead
     "random": true}                     without a script: every second token differs from attempt to attempt

After its script a row makes EOS for ever. Without one, and for any other prompt, it makes a chain: each token is a hash
of the prompt, the seed and all tokens before it (`chain_tokens`), so that a token lost, doubled, or from another job
shows in all that follow.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from shared.errors import InvalidRequestError, ModelError
from worker.detokenizer import BYTE_OF_CHAR
from worker.engines.base import EngineInfo, EngineRequest, StepOutput
from worker.settings import WorkerSettings

EOS = 256  # ids 0..255 are bytes
FIRST_CHAIN_TOKEN, NUM_CHAIN_TOKENS = 32, 95
DEFAULT_MODEL_LEN = 8192
MAX_DELAY = 60.0  # s a step may be made to take


def fake_tokenizer(pieces: Sequence[str] = ()) -> Tokenizer:
    """Every byte is a token with its value as id; then EOS; then the given pieces."""
    vocabulary = dict(BYTE_OF_CHAR)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    return tokenizer


class Chain:
    """The next token, given the prompt, the seed and all tokens so far: printable ASCII."""

    def __init__(self, prompt_token_ids: Sequence[int], seed: int) -> None:
        self._digest = _digest(json.dumps([list(prompt_token_ids), seed]).encode())

    @property
    def next_token(self) -> int:
        return FIRST_CHAIN_TOKEN + self._digest[0] % NUM_CHAIN_TOKENS

    def push(self, token_id: int) -> None:
        """The token that was taken, whether it is `next_token` or not."""
        self._digest = _digest(self._digest + token_id.to_bytes(4, "big"))


def chain_tokens(
    prompt_token_ids: Sequence[int], seed: int, output_token_ids: Sequence[int] = (), *, is_random: bool = False
) -> Iterator[int]:
    """The tokens that the engine makes of a prompt without a script, after the given ones. If `is_random`, numbers 2,
    4, 6, ... (from 1) are different ones each time."""
    chain = Chain(prompt_token_ids, seed)
    for token_id in output_token_ids:
        chain.push(token_id)
    for number in count(len(output_token_ids) + 1):
        is_free = is_random and number % 2 == 0
        token_id = FIRST_CHAIN_TOKEN + secrets.randbelow(NUM_CHAIN_TOKENS) if is_free else chain.next_token
        yield token_id
        chain.push(token_id)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Script:
    """What one row does."""

    tokens: Iterator[int]
    delay: float = 0.0  # s a step
    fail_at: int = 0
    fail_step_at: int = 0
    exit_at: int = 0


@dataclass(slots=True)
class Row:
    """A running row."""

    script: Script
    num_tokens: int = 0  # output tokens so far, earlier attempts' included


class FakeEngine:
    """Implements Engine."""

    def __init__(self, *, max_num_seqs: int = 8, max_model_len: int | None = None, pieces: Sequence[str] = ()) -> None:
        self._tokenizer = fake_tokenizer(pieces)
        self._rows: dict[str, Row] = {}
        self._info = EngineInfo(
            engine="fake",
            max_model_len=max_model_len or DEFAULT_MODEL_LEN,
            max_num_seqs=max_num_seqs,
            vocab_size=self._tokenizer.get_vocab_size(),
            eos_token_ids=frozenset({EOS}),
            tokenizer_json=self._tokenizer.to_str(),
        )

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        """Raises ModelError if `fake_pieces` names no JSON list of strings."""
        pieces = _read_pieces(settings.fake_pieces) if settings.fake_pieces else []
        return cls(max_num_seqs=settings.max_num_seqs, max_model_len=settings.max_model_len, pieces=pieces)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def num_running(self) -> int:
        return len(self._rows)

    def can_add(self, request: EngineRequest) -> bool:
        return len(self._rows) < self._info.max_num_seqs

    def add(self, request: EngineRequest) -> None:
        for token_id in (*request.prompt_token_ids, *request.output_token_ids):
            if not 0 <= token_id < self._info.vocab_size:
                raise InvalidRequestError(f"token id {token_id} is not in the vocabulary", "prompt")
        self._rows[request.id] = Row(self._script_of(request), num_tokens=len(request.output_token_ids))

    def abort(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    def step(self) -> list[StepOutput]:
        time.sleep(max((row.script.delay for row in self._rows.values()), default=0.0))
        for row in self._rows.values():
            if row.num_tokens + 1 == row.script.exit_at:
                os._exit(70)
            if row.num_tokens + 1 == row.script.fail_step_at:
                raise RuntimeError("scripted failure of the forward")
        return [self._advance(row_id, row) for row_id, row in self._rows.items()]

    def close(self) -> None:
        self._rows.clear()

    def _advance(self, row_id: str, row: Row) -> StepOutput:
        row.num_tokens += 1
        if row.num_tokens == row.script.fail_at:
            return StepOutput(row_id, error="scripted failure of the row")
        return StepOutput(row_id, (next(row.script.tokens),))

    def _script_of(self, request: EngineRequest) -> Script:
        text = self._tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        options = _json_object(text)
        return Script(
            self._tokens(request, options),
            delay=min(options.get("delay_ms", 0) / 1000, MAX_DELAY),
            fail_at=options.get("fail_at", 0),
            fail_step_at=options.get("fail_step_at", 0),
            exit_at=options.get("exit_at", 0),
        )

    def _tokens(self, request: EngineRequest, options: dict[str, Any]) -> Iterator[int]:
        if "script" not in options:
            is_random = bool(options.get("random"))
            return chain_tokens(request.prompt_token_ids, request.seed, request.output_token_ids, is_random=is_random)
        scripted = self._scripted(options["script"], ignore_eos=request.sampling_params.ignore_eos)
        return islice(scripted, len(request.output_token_ids), None)

    def _scripted(self, items: Sequence[str | int], *, ignore_eos: bool) -> Iterator[int]:
        for item in items:
            yield from [item] if isinstance(item, int) else self._tokens_of(item)
        while True:
            yield ord(".") if ignore_eos else EOS

    def _tokens_of(self, text: str) -> list[int]:
        piece = self._tokenizer.token_to_id(text) if len(text) > 1 else None
        return list(text.encode()) if piece is None else [piece]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_pieces(path: Path) -> list[str]:
    try:
        pieces = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"FOREBAY_FAKE_PIECES={str(path)!r}: {error}") from None
    if not isinstance(pieces, list) or not all(isinstance(piece, str) and piece for piece in pieces):
        raise ModelError(f"FOREBAY_FAKE_PIECES={str(path)!r}: not a JSON list of strings")
    return pieces

"""All that the processes say to each other: requests, replay-log events, model cards. Plain JSON and text."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Self

FINISHED, CANCELLED, EXPIRED, FAILED = "finished", "cancelled", "expired", "failed"
QUEUED, RUNNING = "queued", "running"
TERMINAL = frozenset({FINISHED, CANCELLED, EXPIRED, FAILED})
TOKEN = "token"  # the type of an event that is not terminal; a terminal event's type is the job's last status

START_HASH = ""  # running hash of no tokens


def running_hash(previous: str, token_ids: Iterable[int]) -> str:
    """Hash of all tokens so far, given that of the earlier ones. It does not depend on how tokens were grouped."""
    digest = previous
    for token in token_ids:
        digest = blake2b(f"{digest}:{token}".encode(), digest_size=8).hexdigest()
    return digest


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one row is sampled. Ranges are checked by the API; names and meaning are vLLM's."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job asks for; never changed after it was accepted."""

    id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    seed: int
    stream: bool  # a reader wants every token at once; otherwise the log is written in larger pieces
    tenant: str = "default"
    job_class: str = "interactive"

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        data = json.loads(text)
        params = data.pop("sampling_params")
        params["stop"] = tuple(params["stop"])
        data["prompt_token_ids"] = tuple(data["prompt_token_ids"])
        return cls(sampling_params=SamplingParams(**params), **data)


@dataclass(frozen=True, slots=True)
class Event:
    """Entry `seq` of a job's replay log, and the message on its channel. A terminal event has no tokens and carries
    `data`: finish_reason, error, usage and timing as far as they apply."""

    job_id: str
    seq: int  # 1, 2, ...: the number of the entry in the log
    epoch: str  # the attempt that made it
    type: str  # TOKEN or one of TERMINAL
    token_ids: tuple[int, ...]
    text: str
    num_tokens: int  # tokens of the job up to and including this event
    hash: str  # running hash of those
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL

    def to_message(self, previous_hash: str) -> str:
        """The pub/sub form. It names the hash before it, so that a reader can tell that nothing is missing."""
        return json.dumps(asdict(self) | {"prev": previous_hash}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_message(cls, text: str | bytes) -> tuple[Self, str]:
        """The event and the hash it continues."""
        data = json.loads(text)
        previous_hash = data.pop("prev")
        data["token_ids"] = tuple(data["token_ids"])
        return cls(**data), previous_hash

    @classmethod
    def from_log(cls, job_id: str, entry_id: str, fields: Mapping[str, str]) -> Self:
        """From an entry of the replay log (`XRANGE events:<id>`)."""
        return cls(
            job_id=job_id,
            seq=int(entry_id.partition("-")[0]),
            epoch=fields["epoch"],
            type=fields["type"],
            token_ids=tuple(json.loads(fields["tokens"])),
            text=fields["text"],
            num_tokens=int(fields["n"]),
            hash=fields["hash"],
            data=json.loads(fields.get("data") or "{}"),
        )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a live worker says about its model, in the hash `models`."""

    name: str
    queue: str
    engine: str
    max_model_len: int
    vocab_size: int
    tokenizer: str  # sha256 of the tokenizer file, found under the key `tokenizer:<sha256>`
    updated_at: int  # ms, Redis clock

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls(**json.loads(text))

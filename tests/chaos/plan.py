"""What a run does, as a function of its seed alone: requests with their right answers, and faults with their times."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tests.support.jobs import prompt_ids
from worker.engines.fake import EOS, FIRST_CHAIN_TOKEN, NUM_CHAIN_TOKENS, Chain, chain_tokens

STREAM, PLAIN, PROMPTS, STOP = "stream", "plain", "prompts", "stop"
CANCEL, ABANDON, POISON, LONG = "cancel", "abandon", "poison", "long"
REQUEST_WEIGHTS = {STREAM: 36, PLAIN: 18, PROMPTS: 7, STOP: 10, CANCEL: 10, ABANDON: 10, LONG: 8, POISON: 0.6}

RANDOM_SHARE = 0.5  # requests whose tokens differ from attempt to attempt: a continuation of the wrong ones shows

# Redis loses data: the streams survive only if the API queues their jobs again.
LOSSY = ("flushall", "redis_restart_empty", "redis_lost_tail")
# With a fault every 0.4 s Redis is away for about a fifth of the time, and processes get to work between their deaths.
FAULT_WEIGHTS = {
    "worker_kill": 3,
    "worker_stop": 1,
    "worker_term": 2,
    "api_kill": 0.3,
    "api_term": 0.3,
    "kill_pubsub": 5,
    "kill_normal": 4,
    "kill_one_connection": 4,
    "debug_sleep": 0.5,
    "pause_write": 0.5,
    "script_flush": 4,
    "redis_kill": 0.5,
    "redis_stop": 0.5,
    "redis_long_stop": 0.05,
    "group_destroy": 1.5,
    "flushall": 0.5,
    "redis_restart_empty": 0.3,
    "redis_lost_tail": 0.5,
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and what its client must see."""

    number: int
    kind: str
    prompts: tuple[str, ...]
    max_tokens: int
    seed: int
    expected: tuple[tuple[int, ...], ...]  # the right tokens of each prompt
    is_random: bool = False  # every second token is free; `expected` has -1 for it
    leave_after: int = 0  # tokens after which the client cancels or hangs up

    def right_tokens(self, part: int, got: Sequence[int]) -> Sequence[int]:
        """The right tokens of a prompt. The free ones are taken from `got`, and each of the others follows from all
        that came before it."""
        if not self.is_random:
            return self.expected[part]
        chain, right = Chain(prompt_ids(self.prompts[part]), self.seed), list(self.expected[part])
        for index, token_id in enumerate(got[: len(right)]):
            is_free = index % 2 == 1 and is_chain_token(token_id)
            right[index] = token_id if is_free else chain.next_token
            chain.push(token_id)
        return right

    @property
    def is_streamed(self) -> bool:
        return self.kind not in (PLAIN, PROMPTS)

    @property
    def finish_reason(self) -> str:
        return "stop" if self.kind == STOP else "length"

    @property
    def body(self) -> dict[str, object]:
        """The HTTP body."""
        prompt: dict[str, object] = {"prompts": self.prompts} if self.kind == PROMPTS else {"prompt": self.prompts[0]}
        return prompt | {"max_tokens": self.max_tokens, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`pick` (0..1) chooses the victim, `extent` (0..1) how long or how much."""

    at: float  # s after the start
    kind: str
    pick: float
    extent: float


def requests(seed: int, count: int) -> Iterator[Request]:
    """The requests of a run."""
    rng = random.Random(f"requests {seed}")
    kinds = rng.choices(list(REQUEST_WEIGHTS), list(REQUEST_WEIGHTS.values()), k=count)
    for number, kind in enumerate(kinds):
        yield _request(rng, number, kind)


def faults(seed: int, kinds: Sequence[str], *, every: float) -> Iterator[PlannedFault]:
    """Faults without end, `every` s on average."""
    rng = random.Random(f"faults {seed}")
    at = 0.0
    while True:
        at += rng.uniform(0.5, 1.5) * every
        kind = rng.choices(kinds, [FAULT_WEIGHTS[kind] for kind in kinds])[0]
        yield PlannedFault(at, kind, rng.random(), rng.random())


def fault_kinds(*, lossy: bool) -> list[str]:
    """All kinds, or all that lose no data."""
    return [kind for kind in FAULT_WEIGHTS if lossy or kind not in LOSSY]


def is_chain_token(token_id: int) -> bool:
    """Whether the fake engine's chains may hold it."""
    return 0 <= token_id - FIRST_CHAIN_TOKEN < NUM_CHAIN_TOKENS


def number_of(prompt: str) -> int:
    """Which request a prompt belongs to; -1 if it is none of ours."""
    try:
        return int(json.loads(prompt)["number"])
    except (ValueError, KeyError, TypeError):
        return -1


def _request(rng: random.Random, number: int, kind: str) -> Request:
    length = rng.randint(200, 600) if kind == LONG else rng.randint(1, 120)
    options: dict[str, object] = {"number": number, "delay_ms": rng.choice([2, 5, 10, 20])}
    seed = rng.getrandbits(32)
    is_random = kind not in (POISON, STOP) and rng.random() < RANDOM_SHARE
    if is_random:
        options["random"] = True
    leave_after = 0
    if kind in (CANCEL, ABANDON):
        leave_after = rng.randint(1, length)
    if kind == POISON:
        options["exit_at"] = rng.randint(1, 12)
        length = 100
    if kind == STOP:
        options["script"] = [chr(rng.randint(97, 122)) for _ in range(length)]
    prompts = tuple(
        json.dumps(options | ({"part": part} if kind == PROMPTS else {}))
        for part in range(rng.randint(2, 5) if kind == PROMPTS else 1)
    )
    expected = tuple(_expected(prompt, length, seed) for prompt in prompts)
    max_tokens = length + 10 if kind == STOP else length
    return Request(number, kind, prompts, max_tokens, seed, expected, is_random, leave_after)


def _expected(prompt: str, length: int, seed: int) -> tuple[int, ...]:
    options = json.loads(prompt)
    if "script" in options:
        return (*(ord(char) for char in options["script"]), EOS)
    if "random" in options:
        return (-1,) * length
    tokens = tuple(islice(chain_tokens(prompt_ids(prompt), seed), length))
    return tokens[: options["exit_at"] - 1] if "exit_at" in options else tokens

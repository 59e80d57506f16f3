"""From a request to jobs: model, tokens, limits. Everything that can be refused is refused here, before queueing."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from api.catalog import Catalog
from api.schemas.generate import GenerateOptions
from api.settings import ApiSettings
from api.tokenizer import Tokenizers
from shared.errors import InvalidRequestError
from shared.messages import JobRequest, ModelCard, SamplingParams

GREEDY_TEMPERATURE = 1e-5  # up to here sampling cannot tell the likeliest token from the others in float32 anyway


@dataclass(frozen=True, slots=True)
class Admitted:
    """Jobs ready to be queued."""

    queue: str
    requests: list[JobRequest]


@dataclass(frozen=True, slots=True)
class Admission:
    """Knows the limits."""

    settings: ApiSettings
    catalog: Catalog
    tokenizers: Tokenizers

    async def admit(self, options: GenerateOptions, prompts: Sequence[str], *, param: str, stream: bool) -> Admitted:
        """One job a prompt. `param` names the field of the prompts in errors.
        Raises InvalidRequestError, ApiError, ModelError, RedisError."""
        card = (await self.catalog.models()).choose(options.model)
        encoded = await self.tokenizers.encode(card, prompts)
        requests = [self._job(options, card, token_ids, param, stream) for token_ids in encoded]
        return Admitted(card.queue, requests)

    def _job(
        self, options: GenerateOptions, card: ModelCard, token_ids: tuple[int, ...], param: str, stream: bool
    ) -> JobRequest:
        check_prompt(token_ids, card, param)
        max_tokens = limit_of(options.max_tokens, len(token_ids), card, self.settings.default_max_tokens)
        return JobRequest(
            id=secrets.token_hex(16),
            model=card.name,
            prompt_token_ids=token_ids,
            sampling_params=sampling_params_of(options, max_tokens, card),
            seed=secrets.randbits(63) if options.seed is None else options.seed,
            stream=stream,
        )


def check_prompt(token_ids: Sequence[int], card: ModelCard, param: str) -> None:
    """Raises InvalidRequestError if the model cannot take the prompt."""
    if not token_ids:
        raise InvalidRequestError(f"{param}: it is empty once tokenised", param)
    if len(token_ids) >= card.max_model_len:
        raise InvalidRequestError(
            f"{param}: it has {len(token_ids)} tokens, the context of {card.name} is {card.max_model_len} "
            "tokens for prompt and output together",
            param,
        )
    if max(token_ids) >= card.vocab_size:
        raise InvalidRequestError(f"{param}: it holds a token that {card.name} has no embedding for", param)


def limit_of(asked: int | None, num_prompt_tokens: int, card: ModelCard, default: int) -> int:
    """max_tokens of a job. Raises InvalidRequestError if more is asked for than the context leaves."""
    left = card.max_model_len - num_prompt_tokens
    if asked is None:
        return min(default, left)
    if asked > left:
        raise InvalidRequestError(
            f"max_tokens: {asked} is too much; the prompt has {num_prompt_tokens} tokens, "
            f"which leaves {left} of the context of {card.max_model_len}",
            "max_tokens",
        )
    return asked


def sampling_params_of(options: GenerateOptions, max_tokens: int, card: ModelCard) -> SamplingParams:
    """Defaults filled in; different ways to say greedy or off become one, so that engines need not know them."""
    temperature = 1.0 if options.temperature is None else options.temperature
    top_p = 1.0 if options.top_p is None else options.top_p
    top_k = options.top_k or 0
    is_greedy = temperature <= GREEDY_TEMPERATURE or top_p == 0
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if is_greedy else temperature,
        top_p=1.0 if is_greedy else top_p,
        top_k=top_k if not is_greedy and 0 < top_k < card.vocab_size else 0,
        stop=tuple(options.stop or ()),
        ignore_eos=bool(options.ignore_eos),
    )

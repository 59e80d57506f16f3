"""Bodies of /generate and /generate_stream. Strict: a wrong type or an unknown field is an error, never ignored."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from api.schemas.common import ErrorObject, Timing, Usage
from shared.errors import InvalidRequestError

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters
INT64 = 2**63

Prompt = Annotated[str, Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class GenerateOptions(BaseModel):
    """What both endpoints take beside the prompt. `null` is the same as leaving a field out."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="Model to use. Default: the server's own, or the only one that is served"
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Most tokens to generate; prompt + max_tokens may not exceed the model's context. "
        "Default: the server's, or what the context leaves if that is less",
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="Randomness; 0 (and anything up to 0.00001) takes the likeliest token. Default: 1"
    )
    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Draw among the likeliest tokens that together have this probability; "
        "0 takes the likeliest one. Default: 1 (off)",
    )
    top_k: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="Draw among so many likeliest tokens; 0 and -1: off (the default)"
    )
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = Field(
        default=None, description="Makes sampling repeatable; the same for every prompt. Default: a random one each"
    )
    stop: Annotated[
        list[Stop] | None,
        Field(max_length=MAX_STOPS),
        BeforeValidator(_as_list, json_schema_input_type=str | list[str] | None),
    ] = Field(
        default=None, description=f"Text that ends the output and is not part of it; up to {MAX_STOPS}, none empty"
    )
    ignore_eos: bool | None = Field(
        default=None, description="Go on to max_tokens although the model would stop. Default: false"
    )


class GenerateRequest(GenerateOptions):
    """Exactly one of `prompt` and `prompts`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}]}
    )

    prompt: Prompt | None = Field(default=None, description="Text to continue")
    prompts: Annotated[list[Prompt], Field(min_length=1)] | None = Field(
        default=None, description="Several texts; they are accepted or refused together and run in one batch"
    )

    def texts(self, max_prompts: int) -> list[str]:
        """The prompts. Raises InvalidRequestError."""
        if self.prompt is not None and self.prompts is not None:
            raise InvalidRequestError("prompts: give either prompt or prompts, not both", "prompts")
        if self.prompt is not None:
            return [self.prompt]
        if self.prompts is None:
            raise InvalidRequestError("prompt: this field (or prompts) is required", "prompt")
        if len(self.prompts) > max_prompts:
            raise InvalidRequestError(f"prompts: {len(self.prompts)} prompts, the limit is {max_prompts}", "prompts")
        return self.prompts


class GenerateStreamRequest(GenerateOptions):
    """One prompt, streamed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "Once upon a time", "max_tokens": 64}]})

    prompt: Prompt = Field(description="Text to continue")


class GenerateResponse(BaseModel):
    """The finished text of one prompt."""

    id: str = Field(description="Id of the job, for /jobs/{id}")
    model: str
    text: str
    finish_reason: str | None = Field(
        description="stop: the model ended or a stop text came; length: max_tokens reached"
    )
    usage: Usage
    timing: Timing


class FailedResult(BaseModel):
    """A prompt of several that has no result."""

    id: str
    model: str
    error: ErrorObject


class GenerateResponses(BaseModel):
    """One item a prompt, in the order of the request."""

    results: list[GenerateResponse | FailedResult]

"""One job's row on the worker: what was generated so far, and when it is done. No torch, no Redis."""

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from shared.messages import JobRequest
from worker.detokenizer import Vocabulary
from worker.engines.base import EngineRequest
from worker.stops import StopChecker


@dataclass(frozen=True, slots=True)
class Output:
    """What a row gained in a step, on its way to Redis. The last one has a finish reason or an error."""

    id: str
    epoch: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str = ""
    error: str = ""

    @property
    def is_last(self) -> bool:
        return bool(self.finish_reason or self.error)


class Sequence:
    """State of one row. Tokens logged by earlier attempts are replayed, so that detokenizer and stops go on in the
    middle of a character or of a stop."""

    def __init__(
        self,
        request: JobRequest,
        epoch: str,
        *,
        vocabulary: Vocabulary,
        eos_token_ids: frozenset[int],
        logged: Ids[int] = (),
    ) -> None:
        self.request = request
        self.epoch = epoch
        self.token_ids: list[int] = []
        self.finish_reason = ""
        self._eos_token_ids = eos_token_ids
        self._detokenizer = vocabulary.detokenizer(request.prompt_token_ids)
        self._stops = StopChecker(request.sampling_params.stop)
        self.append(logged)

    @property
    def id(self) -> str:
        return self.request.id

    def engine_request(self) -> EngineRequest:
        """What the engine needs to go on from here."""
        return EngineRequest(
            id=self.id,
            prompt_token_ids=self.request.prompt_token_ids,
            sampling_params=self.request.sampling_params,
            seed=self.request.seed,
            output_token_ids=tuple(self.token_ids),
        )

    def append(self, token_ids: Ids[int]) -> Output:
        """Take new tokens, up to the one that ends the row."""
        before = len(self.token_ids)
        text = "".join(self._push(token) for token in token_ids if not self.finish_reason)
        return Output(self.id, self.epoch, tuple(self.token_ids[before:]), text, self.finish_reason)

    def fail(self, message: str) -> Output:
        """End the row with an error."""
        return Output(self.id, self.epoch, error=message)

    def _push(self, token_id: int) -> str:
        self.token_ids.append(token_id)
        params = self.request.sampling_params
        if token_id in self._eos_token_ids and not params.ignore_eos:
            self.finish_reason = "stop"
            return self._flush()
        text, is_stopped = self._stops.push(self._detokenizer.push(token_id))
        if is_stopped:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= params.max_tokens:
            self.finish_reason = "length"
            text += self._flush()
        return text

    def _flush(self) -> str:
        """The rest at the end: it may complete a character, and with it a stop."""
        text, is_stopped = self._stops.push(self._detokenizer.flush())
        if is_stopped:
            self.finish_reason = "stop"
            return text
        return text + self._stops.flush()

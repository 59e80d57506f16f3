"""What a reader has been given of its job, kept small, and all else that it takes to submit the job again."""

import time
from array import array
from collections.abc import Iterator

from shared.messages import START_HASH, TOKEN, Event, JobRequest, running_hash
from shared.queue import JobQueue, Resubmission


class Transcript:
    """Some 20 bytes a token, at most max_tokens of them. `timeout` and `keep` (s) are those of the job's submission."""

    def __init__(self, request: JobRequest, *, timeout: float, keep: float) -> None:
        self._request = request
        self._timeout = timeout
        self._keep = keep
        self._submitted_at = time.monotonic()
        self._first_token_at: float | None = None
        self._epochs: list[str] = []  # of each event; equal ones are one object
        self._token_ids = array("I")
        self._token_counts = array("I")  # of each event
        self._text = bytearray()
        self._text_sizes = array("I")  # of each event, in bytes

    def add(self, event: Event) -> None:
        """The reader has been given the job's next event."""
        if event.is_terminal:
            return
        if self._first_token_at is None:
            self._first_token_at = time.monotonic()
        is_same = bool(self._epochs) and self._epochs[-1] == event.epoch
        self._epochs.append(self._epochs[-1] if is_same else event.epoch)
        self._token_ids.extend(event.token_ids)
        self._token_counts.append(len(event.token_ids))
        text = event.text.encode()
        self._text += text
        self._text_sizes.append(len(text))

    def events(self) -> Iterator[Event]:
        """All events so far, as they came."""
        num_tokens = text_end = 0
        digest = START_HASH
        sizes = zip(self._epochs, self._token_counts, self._text_sizes, strict=True)
        for seq, (epoch, count, text_size) in enumerate(sizes, start=1):
            token_ids = tuple(self._token_ids[num_tokens : num_tokens + count])
            text = self._text[text_end : text_end + text_size].decode()
            num_tokens, text_end, digest = num_tokens + count, text_end + text_size, running_hash(digest, token_ids)
            yield Event(self._request.id, seq, epoch, TOKEN, token_ids, text, num_tokens, digest)

    async def resubmit(self, queue: JobQueue) -> Resubmission:
        """Bring the job back as far as the reader has it. Raises RedisError."""
        first = self._first_token_at
        return await queue.resubmit(
            self._request,
            list(self.events()),
            age=time.monotonic() - self._submitted_at,
            timeout=self._timeout,
            keep=self._keep,
            first_token=None if first is None else first - self._submitted_at,
        )

"""The one place that builds Redis keys and channel names (table in docs/architecture.md)."""

import re
from dataclasses import dataclass

SUSPECT, RESUME, INTERACTIVE, BATCH = "suspect", "resume", "interactive", "batch"
JOB_CLASSES = (SUSPECT, RESUME, INTERACTIVE, BATCH)  # the order in which workers take them
GROUP = "workers"  # the consumer group of every job stream


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """Keys of one queue. The braces are a cluster hash tag: one script may touch all of them."""

    prefix: str
    queue: str

    @property
    def base(self) -> str:
        """What every key of the queue begins with; scripts derive their keys from it."""
        return f"{self.prefix}:{{{self.queue}}}:"

    @property
    def control(self) -> str:
        """Channel of hints to workers: `wake`, `cancel <job id>`."""
        return f"{self.base}control"

    @property
    def dead(self) -> str:
        """Stream of the jobs that were given up, the last 1,000 or so."""
        return f"{self.base}dead"

    def jobs(self, job_class: str) -> str:
        """Stream of the jobs of a class."""
        return f"{self.base}jobs:{job_class}"

    def job(self, job_id: str) -> str:
        """Hash of all that is known of a job."""
        return f"{self.base}job:{job_id}"

    def events(self, job_id: str) -> str:
        """Stream that is the replay log of a job."""
        return f"{self.base}events:{job_id}"

    def tokens(self, job_id: str) -> str:
        """Channel on which the entries of the replay log are published."""
        return f"{self.base}tokens:{job_id}"

    def worker(self, worker_id: str) -> str:
        """Hash that a live worker renews."""
        return f"{self.base}worker:{worker_id}"

    def workers_pattern(self, start: str = "") -> str:
        """Glob for SCAN: the hashes of all live workers whose id begins with `start`."""
        return re.sub(r"([\[\]?*\\^])", r"\\\1", self.worker(start)) + "*"


def models_key(prefix: str) -> str:
    """Hash: model name -> ModelCard of the workers that serve it."""
    return f"{prefix}:models"


def tokenizer_key(prefix: str, sha256: str) -> str:
    """String: a tokenizer file, put there by the workers, read by the API."""
    return f"{prefix}:tokenizer:{sha256}"


def queue_name(model_name: str) -> str:
    """The queue of a model: its name, without the braces that would end the hash tag early."""
    return model_name.replace("{", "(").replace("}", ")")

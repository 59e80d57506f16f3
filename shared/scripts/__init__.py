"""The Lua scripts: each is one atomic step of the protocol. Typed callers are in shared/queue.py."""

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError


class Script:
    """One script, called by its hash; sent whole when the server does not know it (restart, SCRIPT FLUSH)."""

    def __init__(self, name: str) -> None:
        self.text = _text("common") + _text(name)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Redis, base: str, *args: str | int) -> Any:
        """Run it on the queue whose keys begin with `base`."""
        try:
            return await client.evalsha(self.sha, 1, base, *args)
        except NoScriptError:
            return await client.eval(self.text, 1, base, *args)

    def queue(self, pipeline: Pipeline, base: str, *args: str | int) -> None:
        """Add a call to a pipeline; a reply that is a NoScriptError asks for `load` and a repetition."""
        pipeline.evalsha(self.sha, 1, base, *args)

    async def load(self, client: Redis) -> None:
        """Make the script known to the server."""
        await client.script_load(self.text)


@cache
def script(name: str) -> Script:
    """The script of shared/scripts/<name>.lua."""
    return Script(name)


def _text(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")

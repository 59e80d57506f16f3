"""A TCP proxy that passes everything on a little later: a Redis that is far away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def slow_proxy(target_port: int, *, delay: float) -> AsyncIterator[int]:
    """Yields its port. `delay` (s) is added on the way to the target."""
    connections: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", target_port)
        try:
            await asyncio.wait(
                [
                    asyncio.create_task(_copy(reader, target_writer, delay)),
                    asyncio.create_task(_copy(target_reader, writer, 0)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            writer.close()
            target_writer.close()
            connections.discard(task)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    while data := await reader.read(1 << 16):
        await asyncio.sleep(delay)
        writer.write(data)
        await writer.drain()

"""A relay that lets bytes through after a while: the delay of a link, where the kernel has no netem.

    python -m benchmarks.shaped.relay ADDRESS DELAY_S PORT=LOCAL_PORT...

On a device's host: whoever connects to ADDRESS:PORT is connected to LOCAL_PORT there, every byte ``DELAY_S`` late, both ways.
It prints a line when it listens.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

_CHUNK = 1 << 16


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Carry everything from ``reader`` to ``writer``, late, and then its end."""
    clock = asyncio.get_running_loop().time
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take_in() -> None:
        data = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except ConnectionError:  # a line that was cut has ended
                data = b""
            under_way.put_nowait((clock() + delay_s, data))

    task = asyncio.create_task(take_in())
    with suppress(ConnectionError):
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - clock()))
            if not data:
                break
            writer.write(data)
            await writer.drain()
    task.cancel()
    writer.close()


async def main() -> None:
    """Listen until ended."""
    address, delay_s = sys.argv[1], float(sys.argv[2])

    async def joined(near: asyncio.StreamReader, back: asyncio.StreamWriter, local_port: int) -> None:
        try:
            far, onward = await asyncio.open_connection("127.0.0.1", local_port)
        except OSError:
            back.close()
            return
        await asyncio.gather(pump(near, onward, delay_s), pump(far, back, delay_s))

    for pair in sys.argv[3:]:
        port, local_port = map(int, pair.split("="))
        await asyncio.start_server(lambda near, back, to=local_port: joined(near, back, to), address, port)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

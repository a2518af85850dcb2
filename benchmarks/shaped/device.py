"""A device's host at work: it takes a tile's operands part by part, and sends each part's result while the next one comes.

    python -m benchmarks.shaped.device PORT CERTIFICATE KEY

One server at a time, which opens two lines: one for what goes down, and one for what goes up (a TLS line of Python must not be
read and written by two threads at once). Results of parts are sent at once, or added up and sent whole.
"""

from __future__ import annotations

import socket
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread

from benchmarks.shaped.wire import Answer, Part, receive, send, tls
from cleave_plan.execution.engines.pieces import result_of, together
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.tile import Box


def serve(down: ssl.SSLSocket, up: ssl.SSLSocket) -> None:
    """Work for one server until it closes the line ``down``."""
    parts: Queue[tuple[Part, dict[int, Array]] | None] = Queue()
    answers: Queue[tuple[Answer, Array] | None] = Queue()
    workers = [Thread(target=_compute, args=(parts, answers)), Thread(target=_answer, args=(answers, up))]
    for worker in workers:
        worker.start()
    held: dict[int, Array] = {}
    while (message := receive(down)) is not None:
        header, arrays = message
        part = Part(*header)
        held.update(zip(part.fresh, arrays, strict=True))
        parts.put((part, {slot: held[slot] for slot in part.slots}))
        if part.last:
            held = {slot: array for slot, array in held.items() if slot < 0}
    parts.put(None)
    for worker in workers:
        worker.join()


def _compute(parts: Queue[tuple[Part, dict[int, Array]] | None], answers: Queue[tuple[Answer, Array] | None]) -> None:
    seconds, total, about = 0.0, None, None
    while (taken := parts.get()) is not None:
        part, arrays = taken
        about = part.about or about
        assert about is not None
        work, form = about
        begin = time.perf_counter()
        result = result_of(work, together(form, [arrays[slot] for slot in part.slots]), Box(*part.box))
        if part.added:
            total = result if total is None else total + result
        seconds += time.perf_counter() - begin
        if not part.added:
            answers.put((Answer(part.tile, part.box, seconds, part.last), result))
        elif part.last:
            answers.put((Answer(part.tile, part.box, seconds, True), total))
        if part.last:
            seconds, total = 0.0, None
    answers.put(None)


def _answer(answers: Queue[tuple[Answer, Array] | None], line: ssl.SSLSocket) -> None:
    while (taken := answers.get()) is not None:
        send(line, tuple(taken[0]), [taken[1]])


def main() -> None:
    """Listen on loopback until ended."""
    port, certificate, key = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    context = tls(certificate, key, server=True)
    with socket.create_server(("127.0.0.1", port)) as listener:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        while True:
            # A server that broke off is followed by the next one.
            with suppress(OSError), _accepted(listener, context) as down, _accepted(listener, context) as up:
                serve(down, up)


def _accepted(listener: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(connection, server_side=True)


if __name__ == "__main__":
    main()

"""Measuring a link: what agent and measurer say to each other over loopback, and what is made of the times."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.fleet.device import Quality
from cleave_plan.profiles import link
from cleave_plan.profiles.agent import Agent, Limits, read_token, tls_server
from cleave_plan.profiles.link import measure_link, split_address, tls_client
from cleave_plan.profiles.linkwire import COUNT, HEADER, LARGEST, MAGIC, SMALL, Kind, Line, WireError, proof
from cleave_plan.profiles.records import Profile, ProfileKind

QUICK = {"repeats": 3, "budget_s": 0.4}


@contextmanager
def running(agent: Agent) -> Iterator[str]:
    """The agent at work in a thread; gives its address."""
    said: list[str] = []
    thread = threading.Thread(target=agent.serve, kwargs={"log": said.append})
    thread.start()
    try:
        yield "{}:{}".format(*agent.address)
    finally:
        agent.close()
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def raw_line(address: str) -> Iterator[socket.socket]:
    """A plain connection to an agent that has said its challenge, which is read and thrown away."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as line:
        assert len(line.recv(HEADER.size + 16, socket.MSG_WAITALL)) == HEADER.size + 16
        yield line


@contextmanager
def greeted(address: str) -> Iterator[socket.socket]:
    """A connection of a measurer without a token that the agent has welcomed, once it has noticed that the last one is over."""
    host, port = address.rsplit(":", 1)
    for _ in range(100):
        with socket.create_connection((host, int(port)), timeout=10) as line:
            challenge = line.recv(HEADER.size + 16, socket.MSG_WAITALL)[HEADER.size :]
            line.sendall(HEADER.pack(MAGIC, Kind.HELLO, 32) + proof(b"", challenge))
            answer = reply(line)
            if answer == (Kind.WELCOME, b""):
                yield line
                return
        assert answer == (Kind.REFUSED, b"another measurement is under way")
        time.sleep(0.1)
    raise AssertionError("the agent stays busy")


def reply(line: socket.socket) -> tuple[int, bytes]:
    """One whole message."""
    _, kind, size = HEADER.unpack(line.recv(HEADER.size, socket.MSG_WAITALL))
    return kind, line.recv(size, socket.MSG_WAITALL) if size else b""


def ended(line: socket.socket) -> bool:
    """Whether the other side has hung up."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_measured_profile() -> None:
    """All four figures of a link, each measured, with quartiles around it and the number of samples."""
    with running(Agent(port=0)) as address:
        profile = measure_link("home", address, **QUICK)
    assert (profile.name, profile.kind) == ("home", ProfileKind.LINK)
    assert set(profile.figures) == {"downlink", "uplink", "latency", "overhead"}
    for name, figure in profile.figures.items():
        assert figure.provenance is not None
        assert figure.provenance.quality is Quality.MEASURED
        assert address in figure.provenance.source
        assert figure.spread is not None
        assert figure.spread.samples == 3
        assert figure.value > 0 or name in ("latency", "overhead")


def test_downlink_is_from_server_to_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The direction towards the agent is the downlink where this machine is the server, the uplink where it is the device.

    A transfer of n bytes is made to take 20 ms and n / rate, less 30 kB that a shaper lets through at once: the rate is what
    is found, neither the 20 ms nor the 30 kB show.
    """
    monkeypatch.setattr(link, "_sink", lambda line, size: 0.02 + max(0, size - 30_000) / 10e6)
    monkeypatch.setattr(link, "_source", lambda line, size: 0.02 + max(0, size - 30_000) / 2e6)
    with running(Agent(port=0)) as address:
        ours = measure_link("a", address, repeats=3)
        theirs = measure_link("b", address, here="device", repeats=3)

    def rates(profile: Profile) -> list[float]:
        return [profile.figures[name].value for name in ("downlink", "uplink")]

    assert rates(ours) == pytest.approx([10e6, 2e6])
    assert rates(theirs) == pytest.approx([2e6, 10e6])


def test_latency_is_a_round_trip_without_the_cost_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 ms of a round trip, of which 1 ms is the message's."""
    monkeypatch.setattr(link, "_echo", lambda line: 0.005)
    monkeypatch.setattr(link, "_row_of_echoes", lambda line: 0.001)
    with running(Agent(port=0)) as address:
        figures = measure_link("a", address, **QUICK).figures
    assert figures["latency"].value == pytest.approx(0.004)
    assert figures["overhead"].value == 0.001


def test_the_token_is_needed_and_not_sent() -> None:
    """Another token, or none, is refused; the right one never crosses the line."""
    sent: list[bytes] = []
    original = socket.socket.sendall

    with running(Agent(port=0, token=b"open sesame")) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "sendall", lambda line, data: sent.append(bytes(data)) or original(line, data))
        with pytest.raises(ExecutionError, match="refuses: the token is not this agent's"):
            measure_link("a", address, token=b"open barley", **QUICK)
        with pytest.raises(ExecutionError, match="refuses"):
            measure_link("a", address, **QUICK)
        assert measure_link("a", address, token=b"open sesame", **QUICK).figures
    assert sent
    assert not any(b"sesame" in data for data in sent)


def test_an_agent_for_others_needs_a_token() -> None:
    """Only loopback is served without one."""
    with pytest.raises(UsageError, match="--token-file"):
        Agent("0.0.0.0", 0)
    Agent("0.0.0.0", 0, token=b"x").close()


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEADER.pack(MAGIC, 77, 0),
        HEADER.pack(MAGIC, Kind.ECHO, SMALL + 1),
        HEADER.pack(MAGIC, Kind.SINK, LARGEST + 1),
        HEADER.pack(MAGIC, Kind.DATA, 5) + b"12345",
        HEADER.pack(MAGIC, Kind.SOURCE, 3) + b"123",
    ],
    ids=["another protocol", "unknown kind", "large echo", "large sink", "unexpected kind", "short count"],
)
def test_messages_beyond_the_limits_end_the_line(message: bytes) -> None:
    """Whatever a measurer sends, the agent hangs up on it and serves the next one."""
    with running(Agent(port=0)) as address:
        with greeted(address) as line:
            line.sendall(message)
            assert ended(line)
        assert measure_link("a", address, **QUICK).figures


@pytest.mark.parametrize(
    "message", [b"x" * 12, HEADER.pack(MAGIC, Kind.ECHO, 1) + b".", HEADER.pack(MAGIC, Kind.HELLO, 4) + b"0000"]
)
def test_nothing_is_served_before_the_greeting(message: bytes) -> None:
    """No echo and no bytes for someone who has not shown the token."""
    with running(Agent(port=0, token=b"secret")) as address, raw_line(address) as line:
        line.sendall(message)
        assert b"." not in line.recv(1)


def test_bytes_asked_for_are_bounded() -> None:
    """More than a message may hold, or than one measurement may have in all, is refused in words."""
    with running(Agent(port=0, limits=Limits(total_bytes=1000))) as address:
        with greeted(address) as line:
            line.sendall(HEADER.pack(MAGIC, Kind.SOURCE, COUNT.size) + struct.pack("!I", LARGEST + 1))
            assert reply(line) == (Kind.REFUSED, b"more bytes than this agent gives to one measurement")
        with greeted(address) as line:
            for _ in range(2):
                line.sendall(HEADER.pack(MAGIC, Kind.SOURCE, COUNT.size) + struct.pack("!I", 600))
            assert reply(line) == (Kind.DATA, bytes(600))
            assert reply(line)[0] == Kind.REFUSED
            assert ended(line)


def test_silence_and_slowness_end() -> None:
    """Neither saying nothing nor dripping single bytes holds the agent; a line that ends early is an error of its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with pytest.MonkeyPatch.context() as patch, ours, theirs:
        patch.setattr(socket.socket, "setsockopt", lambda *_: None)  # there is no Nagle on such a pair
        line = Line(ours, silence_s=0.05, total_s=60)
        with pytest.raises(TimeoutError):
            line.header()
        theirs.sendall(b"CLP1")
        line.until = 0.0
        with pytest.raises(WireError, match="time is over"):
            line.header()


def test_one_at_a_time() -> None:
    """A second measurer is told that there is one already."""
    busy = pytest.raises(ExecutionError, match="refuses: another measurement is under way")
    with running(Agent(port=0)) as address, greeted(address), busy:
        measure_link("a", address, **QUICK)


def test_an_agent_that_is_not_there() -> None:
    """A closed port, and something else that listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            line, _ = other.accept()
            with line:
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ExecutionError, match="does not speak this protocol"):
            measure_link("a", address, **QUICK)
        thread.join()
    with pytest.raises(ExecutionError, match="not reached"):
        measure_link("a", address, **QUICK)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_tls(tmp_path: Path) -> None:
    """With a certificate that is vouched for; not with another's, and not in the clear."""
    for name in ("agent", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / f"{name}.key",
             "-out", tmp_path / f"{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    with running(Agent(port=0, tls=tls_server(tmp_path / "agent.pem", tmp_path / "agent.key"))) as address:
        profile = measure_link("a", address, tls=tls_client(tmp_path / "agent.pem"), **QUICK)
        assert profile.figures["downlink"].provenance is not None
        assert "over TLS" in profile.figures["downlink"].provenance.source
        with pytest.raises(ExecutionError, match="no TLS with it"):
            measure_link("a", address, tls=tls_client(tmp_path / "other.pem"), **QUICK)
    with pytest.raises(InputFileError, match="cannot be used"):
        tls_server(tmp_path / "agent.pem", tmp_path / "other.key")
    with pytest.raises(InputFileError, match="cannot be used"):
        tls_client(tmp_path / "missing.pem")


def test_addresses() -> None:
    """With and without a port, names and both kinds of numbers."""
    assert split_address("10.0.0.7") == ("10.0.0.7", 7407)
    assert split_address("phone.example:80") == ("phone.example", 80)
    assert split_address("[fe80::1]:99") == ("fe80::1", 99)
    assert split_address("fe80::1") == ("fe80::1", 7407)
    for text in ("", ":80", "host:port", "host:0", "host:99999", "host:²"):
        with pytest.raises(UsageError):
            split_address(text)


def test_tokens(tmp_path: Path) -> None:
    """Blanks around it are not part of it; an empty, endless or missing one is refused."""
    path = tmp_path / "token"
    path.write_text("  abc\n")
    assert read_token(path) == b"abc"
    for text in ("", " \n", "x" * 5000):
        path.write_text(text)
        with pytest.raises(InputFileError):
            read_token(path)
    with pytest.raises(InputFileError, match="No such file"):
        read_token(tmp_path / "none")

"""Scenarios of connections: what closes them, and what is answered in spite of its version."""

import struct

from kafka.protocol.consumer import HeartbeatRequest
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from benchmarks.kafka_wire import Closed, Wire, make
from tests.kafka.scenarios import Side, name_of, scenario

__all__: list[str] = []


def _answered(side: Side, wire: Wire, what: str) -> None:
    try:
        wire.receive_bytes()
        side.note(f"{what} answered")
    except Closed:
        side.note(f"{what} closed")


def _sent(side: Side, what: str, data: bytes) -> None:
    with side.wire() as wire:
        wire.send_bytes(data)
        _answered(side, wire, what)


@scenario
def refused(side: Side) -> None:
    """Frames that close the connection"""
    head = struct.pack(">hhih", 12, 1, 1, 1) + b"x"
    _sent(side, "an API that is not there", struct.pack(">hhih", 999, 0, 1, 1) + b"x")
    _sent(side, "a negative API", struct.pack(">hhih", -3, 0, 1, 1) + b"x")
    _sent(side, "a version that is not there", struct.pack(">hhih", 12, 99, 1, 1) + b"x")
    _sent(side, "a negative version", struct.pack(">hhih", 12, -1, 1, 1) + b"x")
    _sent(side, "a request that is cut off", head + b"\0\5ab")
    _sent(side, "no request", b"")
    with side.wire() as wire:
        wire._socket.sendall(struct.pack(">i", 2_000_000_000))
        _answered(side, wire, "a frame of two gigabytes")
    with side.wire() as wire:
        wire._socket.sendall(struct.pack(">i", -1))
        _answered(side, wire, "a frame of a negative size")


@scenario
def longer(side: Side) -> None:
    """A request followed by extra bytes"""
    body = bytes(make(HeartbeatRequest, group_id="g", generation_id=1, member_id="m").encode(version=1))
    _sent(side, "a heartbeat", struct.pack(">hhih", 12, 1, 1, 1) + b"x" + body + b"more")


@scenario
def versions(side: Side) -> None:
    """ApiVersions of a version that is not there"""
    with side.wire() as wire:
        wire.send_bytes(struct.pack(">hhih", 18, 99, 7, 1) + b"x\0")
        answer = wire.receive_bytes()
        decoded = ApiVersionsResponse.decode(answer[4:], version=0)
        listed = {each.api_key for each in decoded.api_keys}
        side.note(f"{name_of(decoded.error_code)} ApiVersions listed {18 in listed}, correlation {answer[:4].hex()}")
        answer0 = wire.ask(make(ApiVersionsRequest), 0)
        side.note(f"then version 0 {name_of(answer0.error_code)}")


@scenario
def one_bad(side: Side) -> None:
    """A connection that is closed leaves others alone"""
    with side.wire() as good, side.wire() as bad:
        bad.send_bytes(struct.pack(">hhih", 999, 0, 1, 1) + b"x")
        _answered(side, bad, "the bad one")
        side.note(f"the other {name_of(good.ask(make(ApiVersionsRequest), 0).error_code)}")

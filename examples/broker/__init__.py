"""A small Kafka broker, in memory, that unmodified Kafka clients talk to; its requests wait in purgatories.

Run it with ``python -m examples.broker --port 9092``.

====================================  ===============================================================================
``__main__``                          the command line
``server connection``                 sockets: frames in and out, limits, the end
``codec table api``                   the wire, the APIs by number, what their files share
``api_00_produce`` ...                one file for each API: versions, what parks, what it leaves out
``broker``                            topics, groups and purgatories together
``topics partition log``              the data: topics, followers and watermarks, segments of batches
``records producers offsets``         batches as bytes, idempotent producers, committed offsets
``settings codes``                    what can be set, and Kafka's error codes
``soak soak_clients soak_...``        clients of all kinds at once, for as long as one likes
====================================  ===============================================================================

What is absent
==============

*   Storage: everything is gone when the process ends, and a partition's oldest segments are deleted beyond
    ``retention_bytes``.
*   Other brokers: followers are simulated by a delay, leaders are never elected but by a call from inside the process.
    Followers of topics whose name starts with ``stall`` never catch up, so that acks=all can be seen to time out.
*   Transactions, and read_committed as against read_uncommitted.
*   Compaction, retention by time, topic configuration, log-append time, message formats 0 and 1.
*   Fetch sessions, quotas and throttling, authentication, authorization, encryption, the consumer protocol of KIP-848,
    share groups, client telemetry, and every API that ``table`` does not name.
"""

try:
    from .broker import Broker
    from .server import Server
    from .settings import Settings
except ModuleNotFoundError as missing:
    if missing.name not in {"crc32c", "kafka"}:
        raise
    message = f"the broker needs {missing.name!r}, which is not installed: pip install -e '.[broker]'"
    raise ModuleNotFoundError(message, name=missing.name) from missing

__all__ = ["Broker", "Server", "Settings"]

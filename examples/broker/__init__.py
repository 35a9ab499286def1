"""A small in-memory Kafka broker for unmodified Kafka clients.  Requests that must wait are parked in purgatories.

Run it with ``python -m examples.broker --port 9092``.

======================  =============================================================================================
``__main__``            the command line
``broker``              topics, groups, and purgatories together
``settings``            the settings and their defaults
``network/``            the server and its connections: frames in and out, limits, shutdown
``protocol/``           the wire format: codec, limit on array elements, error codes
``apis/``               ``api_00_produce`` ...: one file per API; ``dispatch`` finds the API for a request
``storage/``            topics, partitions, logs, record batches, producer state, committed offsets
``soak/``               the soak test: three kinds of clients and hostile connections
======================  =============================================================================================

What is missing
===============

*   Durable storage: all data is lost when the process ends.  A partition larger than ``retention_bytes`` loses its
    oldest segments.
*   Other brokers: a delay simulates the followers.  Only a call from inside the process elects a new leader.  Followers
    of topics whose names start with ``stall`` never catch up, to demonstrate how acks=all times out.
*   Transactions: read_committed and read_uncommitted read the same records.
*   Compaction, time-based retention, topic configuration, log-append time, and message formats 0 and 1.
*   Fetch sessions, quotas and throttling, authentication, authorization, encryption, the consumer protocol of KIP-848,
    share groups, client telemetry, and every API that ``apis/dispatch.py`` does not list.
"""

try:
    from examples.broker.network.server import Server

    from .broker import Broker
    from .settings import Settings
except ModuleNotFoundError as missing:
    if missing.name not in {"crc32c", "kafka"}:
        raise
    message = f"the broker needs {missing.name!r}, which is not installed: pip install -e '.[broker]'"
    raise ModuleNotFoundError(message, name=missing.name) from missing

__all__ = ["Broker", "Server", "Settings"]

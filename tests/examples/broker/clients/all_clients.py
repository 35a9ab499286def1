"""Four unmodified Kafka clients behind one interface: aiokafka, kafka-python, confluent-kafka (librdkafka), and Java.

The interface is synchronous.  A :class:`Member` of a group polls in a separate thread, as an application would, and
records its assigned partitions.
"""

from typing import Any

from tests.examples.broker.clients.aiokafka_client import Aio
from tests.examples.broker.clients.base import KILLED_SESSION_MS, PATIENCE, Member
from tests.examples.broker.clients.confluent_client import Confluent
from tests.examples.broker.clients.java_client import Java
from tests.examples.broker.clients.kafka_python_client import KafkaPython

__all__ = ["CLIENTS", "KILLED_SESSION_MS", "PATIENCE", "Member", "client_named"]

CLIENTS: tuple[Any, ...] = (Aio, KafkaPython, Confluent, Java)


def client_named(name: str, port: int) -> Any:
    """The client of that name, talking to the port."""
    return next(client for client in CLIENTS if client.name == name)(port)

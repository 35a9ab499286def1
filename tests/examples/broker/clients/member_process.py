"""A group member in a separate process that can be killed: it prints its number of partitions at every change."""

import sys
import threading

from tests.examples.broker.clients.all_clients import KILLED_SESSION_MS, client_named

if __name__ == "__main__":
    name, port, topic, group = sys.argv[1:]
    changed = threading.Condition()
    client = client_named(name, int(port))
    client.session_ms = KILLED_SESSION_MS
    member = client.member(changed, topic, group, "range")
    told = 0
    with changed:
        while True:
            if len(member.assigned) not in (0, told):
                told = len(member.assigned)
                print(told, flush=True)
            changed.wait()

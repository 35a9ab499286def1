"""Scenarios of groups: timelines of the join barrier, sessions, and refusals."""

import itertools
import time
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from benchmarks.kafka_wire import Wire, make
from tests.kafka.scenarios import WAIT_MS, Side, name_of, scenario
from tests.kafka.scenarios_offsets import commit

__all__: list[str] = []

_NAMES = itertools.count()
DELAY_MS = 1500  # of a group that was empty, at both brokers


class Group:
    """One group; its methods write down what was answered."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.name = f"group-{next(_NAMES)}"

    def join(self, member: str = "", **options: Any) -> Any:
        """Join, and give the member id that is asked for; return the response."""
        with self.side.wire() as wire:
            answer = self._join(wire, member, **options)
            if answer.error_code == 79 and options.get("again", True):
                answer = self._join(wire, answer.member_id, **options)
            return answer

    def _join(self, wire: Wire, member: str, **options: Any) -> Any:
        protocols = [{"name": name, "metadata": b"m"} for name in options.get("protocols", ("range",))]
        return wire.ask(
            make(
                JoinGroupRequest,
                group_id=options.get("group", self.name),
                session_timeout_ms=options.get("session_ms", 20_000),
                rebalance_timeout_ms=options.get("rebalance_ms", 20_000),
                member_id=member,
                group_instance_id=options.get("instance"),
                protocol_type=options.get("type", "consumer"),
                protocols=protocols,
            )
        )

    def describe_join(self, answer: Any) -> str:
        """Return the response in words."""
        if answer.error_code:
            return f"{name_of(answer.error_code)} member id {'given' if answer.member_id else 'none'}"
        role = "leader" if answer.leader == answer.member_id else "follower"
        return (
            f"generation {answer.generation_id} {answer.protocol_name} {role} of"
            f" {len(answer.members)} listed {self.side.known('M', answer.member_id)}"
        )

    def sync(self, joined: Any, **options: Any) -> str:
        """Sync; the leader hands every listed member its own id."""
        assignments = [
            {"member_id": member.member_id, "assignment": b"for " + member.member_id.encode()}
            for member in joined.members
        ]
        with self.side.wire() as wire:
            answer = wire.ask(
                make(
                    SyncGroupRequest,
                    group_id=self.name,
                    generation_id=options.get("generation", joined.generation_id),
                    member_id=options.get("member", joined.member_id),
                    group_instance_id=options.get("instance"),
                    assignments=assignments,
                )
            )
        own = answer.assignment == b"for " + joined.member_id.encode()
        return f"{name_of(answer.error_code)} own assignment {own}"

    def heartbeat(self, joined: Any, **options: Any) -> str:
        """Send a heartbeat and return the name of the code."""
        with self.side.wire() as wire:
            request = make(
                HeartbeatRequest,
                group_id=options.get("group", self.name),
                generation_id=options.get("generation", joined.generation_id if joined else 0),
                member_id=options.get("member", joined.member_id if joined else "x"),
            )
            return name_of(wire.ask(request).error_code)

    def leave(self, member: str) -> str:
        """Leave and return the name of the code."""
        with self.side.wire() as wire:
            return name_of(wire.ask(make(LeaveGroupRequest, group_id=self.name, member_id=member)).error_code)

    def describe(self) -> str:
        """Return the state, the protocol and the number of members."""
        with self.side.wire() as wire:
            answer = wire.ask(make(DescribeGroupsRequest, groups=[self.name], include_authorized_operations=False))
        group = answer.groups[0]
        return (
            f"{name_of(group.error_code)} {group.group_state} {group.protocol_type!r} {group.protocol_data!r}"
            f" {len(group.members)} members"
        )


@scenario
def alone(side: Side) -> None:
    """A member alone, from join to leave"""
    group = Group(side)
    began = time.monotonic()
    joined = group.join()
    side.note(f"{group.describe_join(joined)} {side.when(time.monotonic() - began, DELAY_MS)}")
    side.note(group.describe())
    side.note(group.sync(joined))
    side.note(group.heartbeat(joined))
    side.note(group.describe())
    with side.wire() as wire:
        groups = wire.ask(make(ListGroupsRequest)).groups
        listed = [each.protocol_type for each in groups if each.group_id == group.name]
        side.note(f"listed {listed}")
    side.note(f"leaves {group.leave(joined.member_id)}")
    side.note(group.describe())
    side.note(f"leaves again {group.leave(joined.member_id)}")
    side.note(f"heartbeat {group.heartbeat(joined)}")


@scenario
def required(side: Side) -> None:
    """A first join is answered with a member id"""
    group = Group(side)
    answer = group.join(again=False)
    side.note(group.describe_join(answer))
    side.note(f"a stranger {group.describe_join(group.join('stranger'))}")


@scenario
def delay(side: Side) -> None:
    """A second member within the delay of an empty group"""
    group = Group(side)
    began = time.monotonic()
    with side.meanwhile(group.join) as first:
        second = group.join()
        passed = time.monotonic() - began
        generations = {first.result().generation_id, second.generation_id}
        listed = sorted([len(first.result().members), len(second.members)])
        side.note(f"generations {generations} listed {listed} {side.when(passed, DELAY_MS)}")


@scenario
def late(side: Side) -> None:
    """A member that comes late"""
    group = Group(side)
    first = group.join()
    side.note(f"{group.describe_join(first)}, {group.sync(first)}")
    with side.meanwhile(group.join) as second:
        side.note(f"{group.heartbeat(first)} second answered {second.done()} {group.describe()}")
        side.note(f"commit {commit(side, group.name, side.topic(), 1, generation=1, member=first.member_id)}")
        side.note(f"sync {group.sync(first)}")
        again = group.join(first.member_id)
        side.note(f"{group.describe_join(again)}; {group.describe_join(second.result())}")
        with side.meanwhile(lambda: group.sync(second.result())) as synced:
            side.note(f"follower answered {synced.done()}")
            side.note(f"heartbeat {group.heartbeat(second.result())}")
            side.note(f"leader {group.sync(again)}, follower {synced.result()}")
    side.note(group.describe())
    side.note(f"old generation {group.heartbeat(again, generation=1)}")


@scenario
def does_not_rejoin(side: Side) -> None:
    """A member that does not rejoin"""
    group = Group(side)
    first = group.join(rebalance_ms=WAIT_MS)
    group.sync(first)
    began = time.monotonic()
    second = group.join(rebalance_ms=WAIT_MS)
    side.note(f"{group.describe_join(second)} {side.when(time.monotonic() - began)}")
    side.note(f"the first {group.heartbeat(first)}")


@scenario
def leader_does_not_sync(side: Side) -> None:
    """A leader that does not sync"""
    group = Group(side)
    first = group.join(rebalance_ms=WAIT_MS, session_ms=20_000)
    began = time.monotonic()
    deadline = began + 3 * WAIT_MS / 1000
    while group.heartbeat(first) in ("NONE", "REBALANCE_IN_PROGRESS") and time.monotonic() < deadline:
        time.sleep(0.05)
    side.note(f"{group.heartbeat(first)} {side.when(time.monotonic() - began)} {group.describe()}")


@scenario
def session(side: Side) -> None:
    """A session that ends"""
    group = Group(side)
    joined = group.join(session_ms=WAIT_MS)
    began = time.monotonic()
    group.sync(joined)
    deadline = began + 3 * WAIT_MS / 1000
    while "Stable" in group.describe() and time.monotonic() < deadline:
        time.sleep(0.05)
    side.note(f"{group.describe()} {side.when(time.monotonic() - began)}")
    side.note(group.heartbeat(joined))


@scenario
def kept_alive(side: Side) -> None:
    """A session that heartbeats keep"""
    group = Group(side)
    joined = group.join(session_ms=1500)
    group.sync(joined)
    for _ in range(5):
        time.sleep(0.5)
        group.heartbeat(joined)
    side.note(f"{group.heartbeat(joined)} {group.describe()}")


@scenario
def leaves_others(side: Side) -> None:
    """A member that leaves another behind"""
    group = Group(side)
    with side.meanwhile(group.join) as first:
        second = group.join()
        leader, follower = sorted([first.result(), second], key=lambda joined: -len(joined.members))
    with side.meanwhile(lambda: group.sync(follower)) as synced:
        side.note(f"{group.sync(leader)} {synced.result()}")
    side.note(f"leaves {group.leave(leader.member_id)}")
    side.note(f"the other {group.heartbeat(follower)}")
    side.note(group.describe_join(group.join(follower.member_id)).replace("M1", "M").replace("M2", "M"))


@scenario
def static(side: Side) -> None:
    """A static member that returns"""
    group = Group(side)
    first = group.join(instance="one")
    side.note(f"{group.describe_join(first)} {group.sync(first, instance='one')}")
    began = time.monotonic()
    again = group.join(instance="one")
    side.note(f"{group.describe_join(again)} {side.when(time.monotonic() - began)}")
    side.note(f"sync {name_of(0)} {group.sync(again, instance='one').split()[0]}")
    side.note(f"the old id {group.heartbeat(first)}")
    side.note(f"the old id with its instance {group.describe_join(group.join(first.member_id, instance='one'))}")
    side.note(f"sync of the old id {group.sync(first, instance='one')}")
    side.note(f"a strange instance {group.describe_join(group.join(again.member_id, instance='two'))}")
    side.note(group.describe())


@scenario
def static_session(side: Side) -> None:
    """A static member whose session ends"""
    group = Group(side)
    first = group.join(instance="one", session_ms=WAIT_MS)
    began = time.monotonic()
    group.sync(first, instance="one")
    deadline = began + 3 * WAIT_MS / 1000
    while "Stable" in group.describe() and time.monotonic() < deadline:
        time.sleep(0.05)
    side.note(f"{group.describe()} {side.when(time.monotonic() - began)}")
    side.note(group.heartbeat(first))
    side.note(f"the old id with its instance {group.describe_join(group.join(first.member_id, instance='one'))}")
    again = group.join(instance="one")
    side.note(f"{group.describe_join(again)} same id {again.member_id == first.member_id}")


@scenario
def id_not_used(side: Side) -> None:
    """A member ID that is not used in time"""
    group = Group(side)
    given = group.join(again=False, session_ms=1000)
    time.sleep(2)
    side.note(f"{group.describe()} {group.describe_join(group.join(given.member_id, session_ms=1000))}")


@scenario
def leaves_while_others_join(side: Side) -> None:
    """A member that leaves while others join"""
    group = Group(side)
    with side.meanwhile(group.join) as one:
        two = group.join()
    leader, follower = sorted([one.result(), two], key=lambda joined: -len(joined.members))
    with side.meanwhile(lambda: group.sync(follower)):
        group.sync(leader)
    began = time.monotonic()
    with side.meanwhile(group.join) as third, side.meanwhile(lambda: group.join(follower.member_id)) as again:
        side.note(f"answered {third.done()} {again.done()} {group.describe()}")
        side.note(f"leaves {group.leave(leader.member_id)}")
        answers = [third.result(), again.result()]
    listed = sorted(len(each.members) for each in answers)
    generations = {each.generation_id for each in answers}
    side.note(f"generations {generations} listed {listed} {side.when(time.monotonic() - began, 20_000)}")


@scenario
def protocols(side: Side) -> None:
    """Protocols of a group"""
    group = Group(side)
    first = group.join(protocols=("range", "roundrobin"))
    group.sync(first)
    side.note(f"nothing in common {group.describe_join(group.join(protocols=('other',)))}")
    side.note(f"another type {group.describe_join(group.join(type='connect'))}")
    side.note(f"no protocols {group.describe_join(group.join(protocols=()))}")
    with side.meanwhile(lambda: group.join(protocols=("roundrobin", "range"))) as second:
        again = group.join(first.member_id, protocols=("range", "roundrobin"))
        side.note(f"{again.protocol_name} {second.result().protocol_name}")


@scenario
def same_again(side: Side) -> None:
    """A follower that joins again with the same metadata"""
    group = Group(side)
    joined = group.join()
    group.sync(joined)
    began = time.monotonic()
    side.note(f"the leader {group.describe_join(group.join(joined.member_id))} {side.when(time.monotonic() - began)}")


@scenario
def group_refused(side: Side) -> None:
    """What a group refuses"""
    group = Group(side)
    side.note(f"a session too short {group.describe_join(group.join(session_ms=1))}")
    side.note(f"a session too long {group.describe_join(group.join(session_ms=2_000_000_000))}")
    side.note(f"no name {group.describe_join(group.join(group=''))}")
    side.note(f"heartbeat {group.heartbeat(None)}")
    side.note(f"leave {group.leave('x')}")
    side.note(f"describe {group.describe()}")
    joined = group.join()
    side.note(f"a future generation {group.heartbeat(joined, generation=9)}")
    side.note(f"sync of it {group.sync(joined, generation=9)}")
    side.note(f"sync of a stranger {group.sync(joined, member='x')}")
    side.note(f"commit of it {commit(side, group.name, side.topic(), 1, generation=9, member=joined.member_id)}")
    side.note(f"commit of a stranger {commit(side, group.name, side.topic(), 1, generation=1, member='x')}")
    side.note(f"commit without a member {commit(side, group.name, side.topic(), 1)}")


@scenario
def coordinator(side: Side) -> None:
    """FindCoordinator"""
    with side.wire() as wire:
        for kind, what in ((0, "group"), (1, "transaction"), (7, "other")):
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                answer = wire.ask(make(FindCoordinatorRequest, key=f"key-{next(_NAMES)}", key_type=kind))
                if answer.error_code != 15:  # its topic is being made
                    break
                time.sleep(0.05)
            side.note(f"{what} {name_of(answer.error_code)} port {answer.port == side.port}")

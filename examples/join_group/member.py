"""A simulated member: a coroutine that acts like a client of the group protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from examples.group import ErrorCode, GroupCoordinator, JoinRequest, JoinResult, SyncRequest
from purgatory import SystemTimer, TimerTask

from .recorder import Recorder, Status
from .scenario import EventKind, MemberPlan, PlannedEvent, Scenario

__all__ = ["SimulatedMember"]

_RETRY_BACKOFF = 0.1
_OVER = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_PROTOCOLS = (("range", b""), ("roundrobin", b""))


class _CoordinatorGone(Exception):
    """The coordinator is closed because the simulation is ending."""


class SimulatedMember:
    """One member of a group, from its arrival to the end of the run."""

    def __init__(
        self,
        plan: MemberPlan,
        group_id: str,
        scenario: Scenario,
        coordinator: GroupCoordinator,
        timer: SystemTimer,
        sleep: Callable[[float], Awaitable[None]],
        record: Recorder,
    ) -> None:
        self._plan = plan
        self._group_id = group_id
        self._scenario = scenario
        self._coordinator = coordinator
        self._timer = timer
        self._sleep = sleep
        self._record = record
        self._events = iter(plan.events)
        self._due_event: PlannedEvent | None = None
        self._event_timer: TimerTask | None = None
        self._task: asyncio.Task[object] | None = None
        self._slow_until_ms = 0
        self._member_id = ""
        self._generation = -1
        self._asked = self._first_request()
        self.assignment = b""

    async def run(self) -> None:
        """Arrive, and take part until the member leaves for good or the coordinator is closed."""
        self._task = asyncio.current_task()
        await self._sleep(self._plan.arrival)
        while True:
            event = await self._live()
            if event is None or event.pause is None:
                return
            await self._sleep(event.pause)

    async def _live(self) -> PlannedEvent | None:
        """Join and work until the next planned event.  Return the event, or None if the coordinator is closed."""
        self._member_id = ""
        self._schedule_event()
        try:
            while True:
                await self._join()
                await self._work()
        except _CoordinatorGone:
            return None
        except asyncio.CancelledError:
            event, self._due_event = self._due_event, None
            if event is None or self._task is None:
                raise
            self._task.uncancel()
        finally:
            if self._event_timer is not None:
                self._event_timer.cancel()
        if event.kind is EventKind.LEAVE and self._plan.instance_id is None and self._member_id:
            # A static member does not send LeaveGroup, because it will return.
            self._coordinator.leave(self._group_id, self._member_id)
        group = self._coordinator.groups.get(self._group_id)
        noticed = group is None or self._member_id not in group.members
        self._say(Status.GONE if noticed else Status.CRASHED)
        return event

    def _schedule_event(self) -> None:
        event = next(self._events, None)
        self._event_timer = None if event is None else self._timer.call_later(event.after, self._on_event, event)

    def _on_event(self, event: PlannedEvent) -> None:
        if event.kind is EventKind.SLOW:
            self._slow_until_ms = self._record.now_ms() + round(1000 * (event.pause or 0.0))
            self._schedule_event()
        elif self._task is not None:
            self._due_event = event
            self._task.cancel()

    async def _join(self) -> None:
        """Join until the member is part of a generation and has an assignment."""
        began_ms = self._record.now_ms()
        self._say(Status.WAITING)
        while True:
            joined = await self._coordinator.join(self._request())
            if joined.error is ErrorCode.NONE:
                if await self._sync(joined):
                    break
            elif joined.error is ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = joined.member_id
            else:
                await self._recover(joined.error)
        self._record.joined(self._record.now_ms() - began_ms)
        self._say(Status.MEMBER)

    def _request(self) -> JoinRequest:
        if self._asked.member_id != self._member_id:
            self._asked = self._asked._replace(member_id=self._member_id)
        return self._asked

    def _first_request(self) -> JoinRequest:
        return JoinRequest(
            self._group_id,
            "",
            "consumer",
            _PROTOCOLS,
            self._scenario.session_timeout,
            self._scenario.rebalance_timeout,
            self._plan.instance_id,
            self._plan.name,
        )

    async def _sync(self, joined: JoinResult) -> bool:
        """Get the member's assignment; a leader also sends all assignments.  Return False if the member must rejoin."""
        self._member_id, self._generation = joined.member_id, joined.generation
        await self._sleep(self._plan.latency)
        assignments = {member.member_id: b"%d" % number for number, member in enumerate(joined.members)}
        synced = await self._coordinator.sync(
            SyncRequest(self._group_id, self._member_id, self._generation, assignments, self._plan.instance_id)
        )
        if synced.error is ErrorCode.NONE:
            self.assignment = synced.assignment
            return True
        if synced.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            await self._recover(synced.error)
        return False

    async def _work(self) -> None:
        """Send heartbeats until a response requires the member to join again."""
        while True:
            await self._sleep(self._scenario.heartbeat_interval)
            error = self._coordinator.heartbeat(
                self._group_id, self._member_id, self._generation, self._plan.instance_id
            )
            if error is ErrorCode.NONE:
                continue
            slow_ms = self._slow_until_ms - self._record.now_ms()
            if error is not ErrorCode.REBALANCE_IN_PROGRESS:
                await self._recover(error)
                if slow_ms > 0:
                    await self._sleep(slow_ms / 1000)
                return
            if slow_ms <= 0:
                return

    async def _recover(self, error: ErrorCode) -> None:
        if error in _OVER:
            raise _CoordinatorGone
        if error is not ErrorCode.ILLEGAL_GENERATION:
            self._member_id = ""
        if error is not ErrorCode.UNKNOWN_MEMBER_ID:
            await self._sleep(_RETRY_BACKOFF)

    def _say(self, status: Status) -> None:
        self._record.client(self._group_id, self._plan.name, status, self._member_id, self._generation)

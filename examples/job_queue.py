"""A job queue without lost jobs: ``python -m examples.job_queue``.

Ten thousand workers wait for jobs.  Each new job goes to the worker that has waited longest, and to no other.  Workers
are cancelled all the time, some of them in the moment in which they have got a job: they give it back, and the next
worker gets it.  At the end the program prints where each job went, and the CPU time of a hand-over.
"""

import argparse
import asyncio
import random
import time
from collections import deque

from purgatory import DelayedOperation, Purgatory


class JobQueue:
    """Hands each job to one worker."""

    def __init__(self) -> None:
        self.purgatory = Purgatory[TakeJob]("jobs")
        self.jobs: deque[int] = deque()
        self.given_back = 0

    def put(self, job: int) -> None:
        """Add a job, and hand it to the worker that has waited longest."""
        self.jobs.append(job)
        self.purgatory.check_and_complete("jobs", limit=1)

    async def take(self, timeout: float | None = None) -> int | None:
        """Wait for a job; None after ``timeout`` seconds."""
        return await self.purgatory.park(TakeJob(self, timeout), ["jobs"])

    def give_back(self, job: int) -> None:
        """Put a job in front that its worker did not get, and hand it to the next worker."""
        self.given_back += 1
        self.jobs.appendleft(job)
        self.purgatory.check_and_complete("jobs", limit=1)


class TakeJob(DelayedOperation[int | None]):
    """A worker that waits for one job."""

    def __init__(self, queue: JobQueue, timeout: float | None) -> None:
        super().__init__(timeout)
        self._queue = queue

    def try_complete(self) -> bool:
        return bool(self._queue.jobs)

    def on_complete(self) -> int | None:
        return None if self.expired else self._queue.jobs.popleft()

    def on_abandoned(self, result: int | None) -> None:
        if result is not None:
            self._queue.give_back(result)


async def simulate(number_of_workers: int, number_of_jobs: int, seed: int) -> list[str]:
    """Run the simulation; return the lines of the report."""
    random_source = random.Random(seed)
    queue = JobQueue()
    done: list[int] = []
    cancelled = 0
    spent = 0.0

    async def work() -> None:
        job = await queue.take()
        if job is not None:
            done.append(job)

    async with queue.purgatory:
        workers: deque[asyncio.Task[None]] = deque(asyncio.create_task(work()) for _ in range(number_of_workers))
        await asyncio.sleep(0)
        for first in range(0, number_of_jobs, 100):
            jobs = range(first, min(first + 100, number_of_jobs))
            before = time.process_time()
            for job in jobs:
                queue.put(job)
            spent += time.process_time() - before
            for _ in jobs:  # the longest waiting worker has a job, which it has not received yet; some are cancelled
                worker = workers.popleft()
                while worker.done():
                    worker = workers.popleft()
                if random_source.random() < 0.25:
                    cancelled += worker.cancel()
            workers.extend(asyncio.create_task(work()) for _ in range(number_of_workers - len(workers)))
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the last jobs that were given back reach their workers
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        handed_over = queue.purgatory.statistics().completed
    lost = set(range(number_of_jobs)) - set(done) - set(queue.jobs)
    return [
        f"{number_of_workers} workers waited, {number_of_jobs} jobs came, {cancelled} workers were cancelled",
        f"jobs handed over: {handed_over}, of which given back: {queue.given_back}, done: {len(done)}",
        f"jobs left in the queue: {len(queue.jobs)}, lost: {len(lost)}, done twice: {len(done) - len(set(done))}",
        f"CPU time of a hand-over: {spent / number_of_jobs * 1e6:.1f} us",
    ]


def main() -> None:
    """Run the simulation and print its report."""
    parser = argparse.ArgumentParser(prog="python -m examples.job_queue", description=__doc__)
    parser.add_argument("--workers", type=int, default=10_000, help="workers that wait at any time (10000)")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs to hand over (20000)")
    parser.add_argument("--seed", type=int, default=1, help="decides which workers are cancelled (1)")
    arguments = parser.parse_args()
    for line in asyncio.run(simulate(arguments.workers, arguments.jobs, arguments.seed)):
        print(line)


if __name__ == "__main__":
    main()

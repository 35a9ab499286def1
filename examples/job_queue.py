"""A job queue that loses no jobs: ``python -m examples.job_queue``.

Ten thousand workers wait for jobs.  Each new job goes only to the worker that has waited longest.  The program cancels
workers at random, some of them just after they were assigned a job.  Such a worker returns its job to the queue, and
the next worker receives it.  At the end, the program prints what happened to the jobs, and the CPU time per job.
"""

import argparse
import asyncio
import random
import time
from collections import deque

from purgatory import DelayedOperation, Purgatory


class JobQueue:
    """Assign each job to one worker."""

    def __init__(self) -> None:
        self.purgatory = Purgatory[TakeJob]("jobs")
        self.jobs: deque[int] = deque()
        self.given_back = 0

    def put(self, job: int) -> None:
        """Add a job and assign it to the worker that has waited longest."""
        self.jobs.append(job)
        self.purgatory.check_and_complete("jobs", limit=1)

    async def take(self, timeout: float | None = None) -> int | None:
        """Wait for a job.  Return None after ``timeout`` seconds."""
        return await self.purgatory.park(TakeJob(self, timeout), ["jobs"])

    def give_back(self, job: int) -> None:
        """Return a job to the front of the queue because its worker was cancelled, and reassign it."""
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
    """Run the simulation.  Return the lines of the report."""
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
            for _ in jobs:  # the task of the oldest worker has not received its job yet; cancel some of these workers
                while workers and workers[0].done():
                    workers.popleft()
                if workers:
                    worker = workers.popleft()
                    if random_source.random() < 0.25:
                        cancelled += worker.cancel()
            workers.extend(asyncio.create_task(work()) for _ in range(number_of_workers - len(workers)))
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # let the last returned jobs reach their workers
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        handed_over = queue.purgatory.statistics().completed
    lost = set(range(number_of_jobs)) - set(done) - set(queue.jobs)
    return [
        f"{number_of_workers} workers waited, {number_of_jobs} jobs arrived, {cancelled} workers were cancelled",
        f"jobs assigned: {handed_over}, of which returned: {queue.given_back}, done: {len(done)}",
        f"jobs left in the queue: {len(queue.jobs)}, lost: {len(lost)}, done twice: {len(done) - len(set(done))}",
        f"CPU time per job: {spent / number_of_jobs * 1e6:.1f} us",
    ]


def main() -> None:
    """Run the simulation and print its report."""
    parser = argparse.ArgumentParser(prog="python -m examples.job_queue", description=__doc__)
    parser.add_argument("--workers", type=int, default=10_000, help="number of waiting workers (10000)")
    parser.add_argument("--jobs", type=int, default=20_000, help="number of jobs (20000)")
    parser.add_argument("--seed", type=int, default=1, help="seed that selects the workers to cancel (1)")
    arguments = parser.parse_args()
    for name in ("workers", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    for line in asyncio.run(simulate(arguments.workers, arguments.jobs, arguments.seed)):
        print(line)


if __name__ == "__main__":
    main()

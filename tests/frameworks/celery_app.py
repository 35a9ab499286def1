"""A Celery application whose task notifies, as the page on Celery shows it; ``CELERY_REDIS`` is the address."""

import os

from celery import Celery

from purgatory.relay import Notifier, RedisTransport

URL = os.environ["CELERY_REDIS"]
app = Celery("tests", broker=f"{URL}/1")
notifier = Notifier(RedisTransport(URL, channel="jobs"))  # before the worker forks


@app.task  # type: ignore[untyped-decorator]
def work(job: str) -> None:
    """Report the progress of a job, and the process that works on it."""
    for progress in (50, 100):
        notifier.check(job, progress)
    notifier.check(("pid", os.getpid()))

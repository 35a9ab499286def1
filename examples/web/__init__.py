"""A live page of a process that uses purgatories: a timer, its purgatories and their operations.

=============  ======================================================================================
``collector``  :class:`Collector` takes snapshots of a timer, its purgatories and consumer groups
``broadcast``  :class:`Broadcast` passes the latest frame to the thread of the page and to its viewers
``app``        the ASGI application: the page, frames as server-sent events, the next frame as JSON
``server``     :class:`Page` runs the application in its own thread, outside the measured event loop
``loop_lag``   :class:`LoopLagMonitor` measures the turns of a running event loop
``page/``      the page: one HTML file, one style sheet, one script
=============  ======================================================================================

::

    with Page(port=8000) as page:
        collector = Collector("my server", timer, [purgatory])
        ...
        page.update(collector)    # from time to time, in the event loop of the timer
"""

from .broadcast import Broadcast
from .collector import Collector
from .loop_lag import LoopLagMonitor
from .server import Page

__all__ = ["Broadcast", "Collector", "LoopLagMonitor", "Page"]

"""A live page: what waits where, now, in a process that uses purgatories.

==========  =========================================================================================================
``scene``   :class:`Scene` looks at a timer, its purgatories and groups, and makes a frame of what it sees
``feed``    :class:`Feed` hands the newest frame from the thread that is looked at to everyone who watches
``app``     the ASGI application: the page, the frames as server-sent events, the newest one as JSON
``server``  :class:`Page` runs it on a thread of its own, so that the page takes no turns of the loop that it measures
``meter``   :class:`LoopMeter` measures the turns of a loop that was not made for it
``page/``   the page itself: one HTML file, one style sheet, one script, as they are
==========  =========================================================================================================

::

    with Page(port=8000) as page:
        scene = Scene("my server", timer, [purgatory])
        ...
        page.look(scene)    # now and then, on the loop that is looked at
"""

from .feed import Feed
from .meter import LoopMeter
from .scene import Scene
from .server import Page

__all__ = ["Feed", "LoopMeter", "Page", "Scene"]

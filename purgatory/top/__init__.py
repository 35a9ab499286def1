"""``purgatory top URL``: the inspector of a service in a terminal.

==============  =====================================================================
``command``     the arguments, and the choice between a terminal and plain text
``client``      frames over HTTP
``screen``      a frame as lines of text
``terminal``    the live view, and the keys that the user presses
==============  =====================================================================
"""

from .command import main

__all__ = ["main"]

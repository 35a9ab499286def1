"""``purgatory top URL``: a service's inspector in a terminal.

==============  =====================================================================
``command``     the arguments, and the choice between a terminal and plain text
``client``      frames over HTTP
``screen``      a frame as lines of text
``terminal``    the live view, and the user's keystrokes
==============  =====================================================================
"""

from .command import main

__all__ = ["main"]

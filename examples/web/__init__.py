"""A live page for a program that uses purgatories: the inspector, and a separate page for consumer groups.

===========  ==========================================================================================
``app``      the ASGI application: the inspector at ``/purgatory/``, and the groups page
``groups``   the groups as plain data
``server``   :class:`Page` serves the application in its own thread, outside the observed event loop
``page/``    the groups page: one HTML file, one style sheet, one script
===========  ==========================================================================================

::

    async with purgatory:
        with Page("my program", [purgatory], port=8000) as page:
            print(page.url)
            ...
"""

from .groups import Groups
from .server import Page

__all__ = ["Groups", "Page"]

"""A long poll over HTTP: requests for a topic's messages wait in a purgatory until messages arrive.

==================  ===================================================================================
``topics``          the messages in memory, independent of HTTP and time
``fetch``           the delayed operation: wait for ``min_bytes`` after an offset
``parameters``      query parameters, their limits, and their errors
``app``             the Starlette application: routes, errors, disconnects
``http_protocol``   limits of a connection: slow requests, unread responses
``unsent``          the limit on the memory of unread responses
``server``          the uvicorn server: sockets, signals, and the shutdown sequence
``server_process``  the server as a child process of another program
``load_tools``      helpers for the next two modules
``load``            ``python -m examples.long_poll.load``: ten thousand readers at the same time
``soak/``           ``python -m examples.long_poll.soak``: random load, disconnects, restarts
==================  ===================================================================================
"""

"""Topics of messages over HTTP, with a long poll: a reader's request waits in a purgatory until there is something.

==============  =======================================================================================
``topics``      the messages, in memory; knows neither HTTP nor time
``fetch``       the delayed operation: a reader who waits for ``min_bytes`` beyond an offset
``parameters``  what a request may ask for, and the reason when it may not
``app``         the HTTP side (Starlette): routes, errors, readers who hang up
``server``      a process of its own (uvicorn): sockets, signals, and the order in which it stops
``process``     that process, started and stopped by another program
``client``      what the next two share
``load``        ``python -m examples.long_poll.load``: ten thousand readers at once
``ledger``      what the readers of a soak were told, checked against the server's books
``soak``        ``python -m examples.long_poll.soak``: random load, readers who hang up, restarts
==============  =======================================================================================
"""

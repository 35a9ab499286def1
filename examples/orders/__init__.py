"""Orders that several workers serve: a change in one worker answers the readers in all workers.

===================  ============================================================================
``__main__``         the command: ``python -m examples.orders --workers 4``
``app``              the FastAPI application that each worker runs
``store``            the interface that the application needs from its database
``sqlite_store``     orders in a file, and sockets beside it: the default
``postgres_store``   orders in Postgres
``page``             the live page
===================  ============================================================================
"""

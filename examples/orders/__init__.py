"""Orders in Postgres, served by several workers: a change in one worker answers the readers in all workers.

===============  ================================================================================
``__main__``     the command: ``python -m examples.orders --workers 4``
``app``          the FastAPI application that each worker runs
``store``        the tables of orders and of workers
``database``     a Postgres server for machines that have none
``page``         the live page
===============  ================================================================================
"""

"""Orders in Postgres, served by several workers: a change in any of them answers the readers in all.

===============  ================================================================================
``__main__``     the command: ``python -m examples.orders --workers 4``
``app``          the FastAPI application that each worker runs
``store``        the table of orders, and that of the workers
``database``     a Postgres for machines that have none
``page``         the live page
===============  ================================================================================
"""

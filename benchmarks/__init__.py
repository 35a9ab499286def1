"""What the waiting room costs, beside everything that a user would pick instead.

``python -m benchmarks``              one table, every row of it measured now
``python -m benchmarks.experiment``   Kafka's purgatory experiment, on the first design and on this one
``python -m benchmarks.report``       the figures of saved runs, written into ``docs/performance.md``
``python -m benchmarks.pictures``     the pictures of saved runs

One module per section of the table; ``measure`` says how a number is made, ``model`` what a row is.
"""

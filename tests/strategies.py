"""The strategies of random tests."""

from collections import Counter

from hypothesis import strategies as st

__all__ = ["ACTIONS", "STEPS", "delays_ms", "endings", "key_sets", "keys", "steps", "thresholds", "ticks", "timeouts"]

keys = st.sampled_from(["a", "b", "c", ("d", 1), 5])
"""Few enough that operations meet."""

key_sets = st.lists(keys, min_size=1, max_size=4)

thresholds = st.dictionaries(keys, st.integers(-2, 8), min_size=1, max_size=3)

timeouts = st.one_of(st.none(), st.sampled_from([0.0, 0.001, 0.0195, 0.02, 0.4, 0.45, 8.0, 100.0]), st.floats(0, 30))
"""Seconds: none at all, the borders of the wheels, and anything."""

delays_ms = st.one_of(
    st.integers(-5, 30),
    st.sampled_from([19, 20, 21, 399, 400, 401, 450, 7_999, 8_000, 160_000, 3_200_000]),
    st.integers(0, 10**7),
)

steps = st.one_of(
    st.sampled_from([0.0, 0.001, 0.0004, 0.019, 0.02, 0.38, 0.4, 8.0]), st.floats(0, 1), st.floats(0, 200)
)
"""How far a clock is moved, in seconds."""

ticks = st.sampled_from([1, 7, 20, 100])

ACTIONS = ["nothing", "raise", "check", "check_soon", "park", "cancel", "cancel_key", "fail_key", "extend", "force"]
"""What a callback of an operation may do besides its own work."""

endings = st.sampled_from(["force", "cancel", "run"])

STEPS: Counter[str] = Counter()
"""How many steps each model has been taken through in this run; pytest prints it at the end."""

"""Clocks, timer tasks, buckets, wheels, and the timer that decides what is due, all without an event loop."""

"""Spark itself: the Java that it runs on, the session, and the progress of its jobs."""

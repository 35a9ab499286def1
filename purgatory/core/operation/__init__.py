"""The delayed operation and its lifecycle: the one place where an outcome is decided."""

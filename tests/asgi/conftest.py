"""Tests of the asgi package with real frameworks; without the frameworks the tests are skipped."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("fastapi") else ["test_*.py"]

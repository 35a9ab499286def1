"""The asgi package is tested with real frameworks; without them its tests are skipped."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("fastapi") else ["test_*.py"]

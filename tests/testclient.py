"""Starlette's TestClient, which FastAPI exports; its module warns about the httpx that it uses."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer versions of Starlette prefer httpx2
    from starlette.testclient import TestClient

__all__ = ["TestClient"]

"""Waiting in a complete server: one Starlette handler on uvicorn, with its wait written in five ways."""

from .section import prepare, rows

__all__ = ["prepare", "rows"]

"""Waiting at the level of a server: one Starlette handler, its wait written in five ways, on uvicorn."""

from .section import prepare, rows

__all__ = ["prepare", "rows"]

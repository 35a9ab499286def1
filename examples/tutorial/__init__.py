"""The programs in the tutorial, one for each chapter: ``uvicorn examples.tutorial.chapter_1:app``."""

# The commands of a contributor.  PYTHON is the interpreter of the environment: make quick PYTHON=.venv-3.13/bin/python
PYTHON ?= .venv/bin/python

.PHONY: help install quick test slow lint docs all

help:                      ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

install:                   ## make .venv for the tests
	python3 -m venv .venv && .venv/bin/pip install -e '.[dev]'

quick:                     ## run the tests of the core, aio, and the locks, in half a minute
	$(PYTHON) -m pytest -n 2 --dist loadgroup tests/core tests/aio tests/locks

test:                      ## run all tests but the slow ones, in a few minutes
	$(PYTHON) -m pytest -n 2 --dist loadgroup

slow:                      ## run the slow tests, and the property tests with all of their examples
	$(PYTHON) -m pytest -n 2 --dist loadgroup --slow -m 'slow or hypothesis'

lint:                      ## check the style and the types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

docs:                      ## serve the documentation; pip install -e '.[docs,otel]' first
	$(PYTHON) -m mkdocs serve

all:                       ## run every check in a clean clone
	bash .ci/run

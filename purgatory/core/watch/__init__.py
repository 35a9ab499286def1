"""Watcher lists by key, thresholds, and the validation of keys."""

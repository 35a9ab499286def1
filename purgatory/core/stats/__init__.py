"""Counters, histograms, and the notification of observers."""

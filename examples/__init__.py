"""Example programs, from a forty-line quickstart to a Kafka broker."""

"""The Kafka APIs: one file per API, named by its key."""

"""The data: topics, partitions, logs, record batches, producer state, and committed offsets."""

"""The wire format: frames, messages, and error codes."""

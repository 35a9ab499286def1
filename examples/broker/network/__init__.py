"""The server and its connections."""

"""The layer that awaits: the purgatory and the timer on an asyncio event loop."""

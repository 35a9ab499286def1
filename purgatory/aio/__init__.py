"""The asynchronous layer: the purgatory and the timer on an asyncio event loop."""

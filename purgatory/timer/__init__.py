"""The timer's synchronous half: tasks, buckets, wheels.  It takes the time as an argument and knows no event loop."""

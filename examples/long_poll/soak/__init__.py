"""The soak test of the long poll: random load, and checks of every answer."""

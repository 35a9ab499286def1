"""The soak test of the broker: several clients at the same time, and checks of what they received."""

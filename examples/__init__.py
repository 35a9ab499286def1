"""Example programs, from forty lines to a server."""

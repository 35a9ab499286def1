"""Programs that wait in a purgatory, from forty lines to a server."""

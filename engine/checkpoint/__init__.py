"""Training checkpoints: read as plain data, then recognised as a network."""

"""Training of drafters: text by the target itself, its features, a network, a file."""

"""Drafters: networks and look-ups that guess what the target will write next."""

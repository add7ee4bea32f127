"""The HTTP faces: routes that translate wire formats to the chat contract and back, on FastAPI."""

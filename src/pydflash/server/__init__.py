"""The HTTP server: the APIs that tools already speak, over one service, and the pages for people."""

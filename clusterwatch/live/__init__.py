"""Websocket topics for browsers: numbered deltas, resumed after a gap."""

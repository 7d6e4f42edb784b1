"""Parts of the running product are killed, and what was acknowledged is counted afterwards."""

"""Pure decoders, bytes -> columns. No file, no clock, no network; used on the node and on the server."""

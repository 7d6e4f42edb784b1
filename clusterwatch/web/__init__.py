"""Server-rendered screens; the sentence is in the HTML. Reads through queries, writes through services."""

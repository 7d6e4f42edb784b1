"""Jobs, attempts, worlds, ranks, groups, placements and captures. Writes in services, reads in queries."""

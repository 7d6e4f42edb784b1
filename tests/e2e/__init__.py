"""The whole product on real processes: supervisor, servers, agents, torch ranks, browser."""

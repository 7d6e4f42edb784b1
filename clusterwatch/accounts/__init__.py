"""Users, teams, tokens and the audit log."""

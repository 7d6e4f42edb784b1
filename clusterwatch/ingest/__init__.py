"""Gateway and pulse: from the wire to hot state and PostgreSQL, and once a second to the live pages.

May use jobs, fleet, accounts and store; nothing imports it but the process table.
"""

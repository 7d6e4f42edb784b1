"""REST v1: translates queries and services of the rooms below; decides nothing."""

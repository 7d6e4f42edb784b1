"""The only room with SQL for series, partitions and retention, and with Valkey keys.

In: rows and arrays from ingest and pulse. Out: the same, for queries. Imports nothing above it.
"""

"""Clusters, nodes, GPU slots and what they hang on (racks, leaves, NVLink domains)."""

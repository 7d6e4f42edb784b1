"""Slowness: pure arrays in, named parts out."""

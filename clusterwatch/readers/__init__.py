"""Folders and archives in, columns out: the file input of ``clusterwatch analyze``.

Everything read here is untrusted: sizes, counts and depths are capped, links and devices are never opened,
and a bad file is named as an ``InputProblem`` while the rest is read.
"""

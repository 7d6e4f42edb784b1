"""One module per measurement of ``clusterwatch bench``: ``run(arguments) -> figures``."""

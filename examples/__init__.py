"""A real PyTorch job to watch: ``train`` is the job, ``run`` starts it on four named hosts with their agents.

In: a running clusterwatch (its ``endpoints.json``). Out: processes that train, and a fault on request.
``train`` knows nothing of clusterwatch; ``faults`` is what goes wrong in a rank, ``network`` a host cut off.
"""

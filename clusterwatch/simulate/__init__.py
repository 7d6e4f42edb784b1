"""A simulated cluster that speaks the real wire: one process in place of thousands of agents.

In: a size, a seed, an enrolment token. Out: what real agents send: hellos, hot frames, inventories, steps and
blocks. The cluster is marked simulated. State is vectorised over the cluster; only encoding is per node.
May import `collectors` only; imported by `clusterwatch.cli.simulate`.
"""

"""What can go wrong in a simulated cluster, one file for each family of faults.

In: a ``Scenario`` and a ``Case``. Each fault changes the signals that a real one would change, and no
others, and returns the ``Truth`` about it. A new one is a function in its family's file and a line in
``catalogue``.
"""

"""Who is slow: from the times of collective calls, or from per-step statistics, to named parts.

In: ``calls.Calls`` (one row per rank and call) with a ``layout.Layout``; ``steps.table`` makes a
``steps.StepTable`` of them: arrays of steps x ranks and steps x groups, which a live job's step records fill
as well. Out: ``judge.findings``. The method is DESIGN section 6: the late rank has the shortest collective;
only its own work, from leaving one blocking call to entering the next on one clock, names it.
"""

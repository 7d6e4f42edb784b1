"""Pure analysis: dataclasses in, verdicts out. No Django, file, socket, clock, logging or randomness.

``diagnose(Observation) -> Diagnosis`` is the one way from evidence to a verdict; ``clusterwatch analyze``
fills the observation from a folder, ``clusterwatch.detect`` from the live system.
"""

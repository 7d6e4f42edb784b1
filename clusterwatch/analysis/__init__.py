"""Pure analysis: dataclasses in, verdicts out. No Django, file, socket, clock, logging or randomness.

``diagnose(Observation) -> Diagnosis`` is the one way from evidence to a verdict; ``clusterwatch analyze``
fills the observation from a folder, ``clusterwatch.detect`` from the live system.
"""

from clusterwatch.analysis.diagnosis import diagnose
from clusterwatch.analysis.model import Diagnosis, Finding, Observation
from clusterwatch.analysis.verdicts import CATALOGUE, exit_code

__all__ = ["CATALOGUE", "Diagnosis", "Finding", "Observation", "diagnose", "exit_code"]

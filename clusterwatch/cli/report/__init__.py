"""What ``clusterwatch analyze`` shows: text for a terminal, one HTML page, a trace for Perfetto.

In: ``Diagnosis`` and ``Overview`` of the analysis. Out: lines and files. Nothing here decides anything, and
every name that came from a dump is made harmless before it is shown. No Django.
"""

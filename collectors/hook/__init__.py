"""Inside the training process: standard library and the job's own torch only.

In: torch's public hooks, its flight recorder, the interpreter's own state. Out: ``protocol`` frames to the
agent on a unix socket. This folder goes alone on PYTHONPATH, so its modules import each other by plain
relative name through the package; nothing else of ``collectors`` may be imported here, and the hook never
raises into the job, never installs a signal handler and never holds the GIL over 5 ms outside a capture.
"""

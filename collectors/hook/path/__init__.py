"""The one folder that goes on a job's PYTHONPATH; a package only so that every distribution carries it."""

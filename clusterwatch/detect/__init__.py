"""Celery tasks that fetch a window, call the analysis and hand findings on. Decides nothing itself."""

"""Settings, urls, ASGI and Celery applications."""

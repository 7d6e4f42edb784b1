"""The node side: what runs beside a training job, and inside it.

In: the machine's own files and tools, training processes that carry the hook.
Out: wire records (``collectors.wire``) over one websocket to a gateway.
Imports nothing of ``clusterwatch`` and nothing of Django; the base distribution is enough to run it.
"""

__version__ = "0.1.0"

"""What every page's frame needs."""

from typing import Any

from django.http import HttpRequest


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context of the top bar and rail."""
    return {}

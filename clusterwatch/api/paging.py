"""Cursor paging: ``{"results": [...], "next": URL or null}``; every list is bounded."""

from __future__ import annotations

from typing import Any

from rest_framework.pagination import CursorPagination
from rest_framework.response import Response


class Paging(CursorPagination):
    """Newest first; ``limit`` up to 500."""

    page_size = 100
    max_page_size = 500
    page_size_query_param = "limit"
    ordering: str | tuple[str, ...] = "-id"

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"results": data, "next": self.get_next_link()})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["results", "next"],
            "properties": {
                "results": {"type": "array", "items": schema},
                "next": {"type": "string", "nullable": True, "format": "uri"},
            },
        }


class ByName(Paging):
    """In name order, for things people look up."""

    ordering = ("name", "id")


class ByRank(Paging):
    """In (world, rank) order; a page may hold a whole middling job."""

    page_size = 1024
    max_page_size = 4096
    ordering = ("world", "rank")

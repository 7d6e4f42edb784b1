"""Cursor paging: ``{"results": [...], "next": URL or null}``; every list is bounded."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response


class Paging(CursorPagination):
    """Newest first; ``limit`` up to 500."""

    page_size = 100
    max_page_size = 500
    page_size_query_param = "limit"
    ordering: str | tuple[str, ...] = "-id"

    def get_page_size(self, request: Request) -> int | None:
        """The page size asked for. Raises ``ValidationError`` on what is no number of 1 to the maximum."""
        asked = request.query_params.get(self.page_size_query_param)
        if asked is None:
            return self.page_size
        if not (asked.isascii() and asked.isdecimal() and 1 <= int(asked[:9]) <= self.max_page_size):
            raise ValidationError({"limit": [f"a whole number from 1 to {self.max_page_size}"]})
        return int(asked)

    def decode_cursor(self, request: Request) -> Any:
        """The place to go on from. Raises ``ValidationError`` on a made-up one."""
        try:
            return super().decode_cursor(request)
        except NotFound as fault:
            raise ValidationError({"cursor": ["take it from `next`"]}) from fault

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        limit = {"type": "integer", "minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
        return [
            {"name": "cursor", "in": "query", "required": False, "schema": {"type": "string"}},
            {"name": "limit", "in": "query", "required": False, "schema": limit},
        ]

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"results": data, "next": self.get_next_link()})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["results", "next"],
            "properties": {
                "results": schema,
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

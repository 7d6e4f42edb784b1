"""Cursor paging: ``{"results": [...], "next": URL or null}``."""

from rest_framework.pagination import CursorPagination


class Paging(CursorPagination):
    page_size = 100
    ordering = "-id"

"""Template filters: numbers, ages and times as ux/SYSTEM.md section 7 writes them."""

from django import template

register = template.Library()

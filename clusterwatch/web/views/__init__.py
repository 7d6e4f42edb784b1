"""Views: each translates a request into queries and services, and answers with a template."""

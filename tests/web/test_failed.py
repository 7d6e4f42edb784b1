"""A request that fails: words, the right status, and no database in the answer."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client


def no_database(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    raise OperationalError("connection refused")


def broken(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    raise RuntimeError("something else")


@pytest.fixture
def patient_client() -> Client:
    return Client(raise_request_exception=False)


@pytest.mark.django_db
def test_a_page_without_its_database_says_so_and_comes_back(patient_client: Client, admin_user: Any) -> None:
    patient_client.force_login(admin_user)
    with connection.execute_wrapper(no_database):
        response = patient_client.get("/")
    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert "The database does not answer" in response.text
    assert "clusterwatch why" not in response.text, "it asks the same database"
    assert 'http-equiv="refresh"' in response.text


@pytest.mark.django_db
def test_rest_without_its_database_answers_json(patient_client: Client, admin_user: Any) -> None:
    patient_client.force_login(admin_user)
    with connection.execute_wrapper(no_database):
        response = patient_client.get("/api/v1/jobs")
    assert response.status_code == 503
    assert response.json()["code"] == "database_away"


@pytest.mark.django_db
def test_a_fault_of_ours_is_500_and_does_not_reload(patient_client: Client, admin_user: Any) -> None:
    patient_client.force_login(admin_user)
    with connection.execute_wrapper(broken):
        response = patient_client.get("/")
    assert response.status_code == 500
    assert "This page failed" in response.text
    assert "refresh" not in response.text

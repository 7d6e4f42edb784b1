from django.apps import AppConfig


class IncidentsConfig(AppConfig):
    name = "clusterwatch.incidents"
    default_auto_field = "django.db.models.BigAutoField"

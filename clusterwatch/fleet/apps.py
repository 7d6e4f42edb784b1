from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "clusterwatch.fleet"
    default_auto_field = "django.db.models.BigAutoField"

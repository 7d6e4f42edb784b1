from django.apps import AppConfig


class LiveConfig(AppConfig):
    name = "clusterwatch.live"
    default_auto_field = "django.db.models.BigAutoField"

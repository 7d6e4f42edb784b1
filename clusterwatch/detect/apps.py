from django.apps import AppConfig


class DetectConfig(AppConfig):
    name = "clusterwatch.detect"
    default_auto_field = "django.db.models.BigAutoField"

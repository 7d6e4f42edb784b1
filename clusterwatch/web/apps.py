from django.apps import AppConfig


class WebConfig(AppConfig):
    name = "clusterwatch.web"
    default_auto_field = "django.db.models.BigAutoField"

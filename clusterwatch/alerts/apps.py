from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate


class AlertsConfig(AppConfig):
    name = "clusterwatch.alerts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Models of django_celery_beat may be imported only now that every app is loaded.
        from clusterwatch.alerts import schedule

        beat = apps.get_app_config("django_celery_beat")
        post_migrate.connect(schedule.install, sender=beat, dispatch_uid="clusterwatch.alerts.schedule")

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "clusterwatch.accounts"
    default_auto_field = "django.db.models.BigAutoField"

"""Django settings. Values come from ``environment``; this file only arranges them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clusterwatch.project import environment

try:
    SECRET_KEY = environment.secret_key()
    _database = environment.database()
    VALKEY_URL = environment.valkey_url()
    CELERY_BROKER_URL = environment.celery_broker_url()
    PUBLIC_URL = environment.public_url()
    RETENTION_DAYS = environment.retention_days()
    BLOCK_SHAPES_MAX = environment.block_shapes_max()
    SMTP = environment.smtp()
    WEBHOOKS_ANYWHERE = environment.webhooks_anywhere()
except environment.EnvironmentFault as fault:
    if os.environ.get("CLUSTERWATCH_SETTINGS_RAISE"):
        raise
    sys.exit(f"clusterwatch: {fault}")

STATE_DIR = environment.state_dir()
BASE_DIR = Path(__file__).resolve().parents[2]
ASSET_DIR = BASE_DIR if (BASE_DIR / "templates").is_dir() else Path(__file__).resolve().parents[1] / "assets"

DEBUG = False
_public = urlsplit(PUBLIC_URL)
ALLOWED_HOSTS = [_public.hostname or "127.0.0.1", "127.0.0.1", "localhost", "[::1]", "testserver"]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _public.scheme == "https"
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django_celery_beat",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "clusterwatch.store",
    "clusterwatch.accounts",
    "clusterwatch.fleet",
    "clusterwatch.jobs",
    "clusterwatch.incidents",
    "clusterwatch.alerts",
    "clusterwatch.ingest",
    "clusterwatch.detect",
    "clusterwatch.api",
    "clusterwatch.web",
    "clusterwatch.live",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "clusterwatch.web.security.ContentSecurityPolicyMiddleware",
]

ROOT_URLCONF = "clusterwatch.project.urls"
ASGI_APPLICATION = "clusterwatch.project.asgi.application"
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ASSET_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "clusterwatch.web.context.frame",
            ],
            "builtins": ["clusterwatch.web.formats"],
        },
    }
]

DATABASES = {"default": _database.as_django}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": VALKEY_URL}}

CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600, "global_keyprefix": "celery:"}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_TIME_LIMIT = 60
CELERY_TASK_SOFT_TIME_LIMIT = 50
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "clusterwatch.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["clusterwatch.api.permissions.ScopePermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "clusterwatch.api.schema.Schema",
    "DEFAULT_PAGINATION_CLASS": "clusterwatch.api.paging.Paging",
    "EXCEPTION_HANDLER": "clusterwatch.api.errors.handle",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "clusterwatch",
    "DESCRIPTION": "What stops or slows a training job, and who is to blame.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
}

STATIC_URL = "/static/"
STATICFILES_DIRS = [ASSET_DIR / "static"]
# Served from where they lie: nothing is collected into a folder of its own, so there is no STATIC_ROOT.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

LANGUAGE_CODE = "en"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    # One tick a second would fill the log with four lines that say nothing.
    "loggers": {name: {"level": "WARNING"} for name in ("celery.worker.strategy", "celery.app.trace")},
    "root": {"handlers": ["stderr"], "level": os.environ.get("CLUSTERWATCH_LOG_LEVEL", "INFO")},
}

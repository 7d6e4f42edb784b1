"""ASGI: HTTP to Django, websockets to the live room. Importing it makes pages ready to be served."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
_http = get_asgi_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402  (models load only after Django is set up)
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from clusterwatch.live.routing import websocket_urlpatterns  # noqa: E402
from clusterwatch.project.warm_up import warm_up  # noqa: E402

warm_up()

application = ProtocolTypeRouter(
    {
        "http": _http,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)

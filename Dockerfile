# The image of docker-compose.yml: the wheel is made where a compiler is, then runs as a plain user without one.
FROM python:3.11-slim-bookworm AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY requirements/build.txt requirements/build.txt
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
WORKDIR /srv/clusterwatch
COPY requirements requirements
RUN pip install --no-cache-dir --require-hashes -r requirements/server.txt
COPY manage.py ./
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && useradd --system --home-dir /var/lib/clusterwatch --create-home clusterwatch
USER clusterwatch
VOLUME /var/lib/clusterwatch

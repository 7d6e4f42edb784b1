# The image of docker-compose.yml: hashed requirements, then the package itself, run as a plain user.
FROM python:3.11-slim-bookworm
WORKDIR /srv/clusterwatch
COPY requirements requirements
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt -r requirements/server.txt
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation --no-index . \
    && useradd --system --home-dir /var/lib/clusterwatch --create-home clusterwatch
USER clusterwatch
VOLUME /var/lib/clusterwatch

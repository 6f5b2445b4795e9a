FROM python:3.11-slim AS base
WORKDIR /src
COPY requirements.lock .
RUN python -m venv /opt/flow-engine \
    && /opt/flow-engine/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY . .

# The console is built with the API's own description, so with the packages that make it.
FROM base AS console
RUN /opt/flow-engine/bin/pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && /opt/flow-engine/bin/python console/build.py

FROM base AS build
COPY --from=console /src/api/console_dist api/console_dist
RUN /opt/flow-engine/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends graphviz && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 999 --create-home --home-dir /var/lib/flow-engine flow-engine
COPY --from=build /opt/flow-engine /opt/flow-engine
USER flow-engine
WORKDIR /var/lib/flow-engine
ENV PATH=/opt/flow-engine/bin:$PATH PYTHONUNBUFFERED=1 FLOW_ENGINE_DATA_DIR=/var/lib/flow-engine
EXPOSE 8080 5050
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health/live', timeout=2)"]
# Listening beyond loopback needs API keys: the service refuses to start without them.
CMD ["flow-engine", "serve", "--host", "0.0.0.0", "--port", "8080"]

# Two images from one source: `--target api` (no torch) and `--target worker`. Needs nothing of BuildKit.
#
# A small CPU image of the worker: --build-arg TORCH_INDEX_URL=<PyTorch's package index for CPU builds>. Without it
# pip takes the torch of its usual index, on Linux one with CUDA.
# Where the build reaches no package index: put all wheels into .wheels/ and add --build-arg PIP_NO_INDEX=1.

ARG PYTHON_IMAGE=python:3.11-slim

# --- what both share ---
FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_NO_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_FIND_LINKS=/wheels
WORKDIR /src
# the pattern lets the folder be absent
COPY constraints.txt .wheels* /wheels/
RUN python -m venv /opt/venv && python -m venv /opt/build && /opt/build/bin/pip install hatchling
COPY pyproject.toml constraints.txt deploy/requirements.py ./

FROM build AS wheel
COPY README.md LICENSE ./
COPY api ./api
COPY cli ./cli
COPY shared ./shared
COPY worker ./worker
RUN /opt/build/bin/python -m hatchling build --target wheel --directory /dist

FROM ${PYTHON_IMAGE} AS base
RUN useradd --uid 10001 --create-home forebay && install -d -o forebay -g forebay /data
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FOREBAY_DATA_DIR=/data \
    HF_HOME=/data/huggingface
WORKDIR /home/forebay
USER forebay

# --- the API. The classic builder makes every stage above its target: the worker's come last ---
FROM build AS api-dependencies
RUN python requirements.py pyproject.toml api > requirements.txt \
    && /opt/venv/bin/pip install --constraint constraints.txt --requirement requirements.txt

FROM api-dependencies AS api-venv
COPY --from=wheel /dist /dist
RUN /opt/venv/bin/pip install --no-deps /dist/*.whl

FROM base AS api
COPY --from=api-venv /opt/venv /opt/venv
ENV FOREBAY_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]
CMD ["forebay", "api"]


# --- the worker ---
FROM build AS worker-dependencies
ARG TORCH_INDEX_URL=""
RUN python requirements.py pyproject.toml worker > requirements.txt \
    && /opt/venv/bin/pip install --constraint constraints.txt --requirement requirements.txt \
       ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"}

FROM worker-dependencies AS worker-venv
COPY --from=wheel /dist /dist
RUN /opt/venv/bin/pip install --no-deps /dist/*.whl

FROM base AS worker
COPY --from=worker-venv /opt/venv /opt/venv
VOLUME /data
HEALTHCHECK --interval=15s --timeout=10s --start-period=900s CMD ["forebay", "worker", "--check"]
CMD ["forebay", "worker"]

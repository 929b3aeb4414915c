# One image for every role; the command chooses it:
#
#   docker build -t cloudmatrix-infer .
#   docker run --init --shm-size=4g -p 127.0.0.1:8000:8000 cloudmatrix-infer
#   docker run --init --shm-size=4g cloudmatrix-infer cloudmatrix serve --config deploy/aggregated.toml --host 0.0.0.0
#   docker compose -f deploy/compose.yaml up                  several hosts: deploy/hosts/head.sh and worker.sh
#   kubectl apply -k deploy/kuberay                           the operator starts Ray by itself, and asks by wget
#
# UB segments and Ray's object store are shared memory: give --shm-size at least the nodes' ub_memory_mib plus 1 GiB.
FROM python:3.11-slim

# Handed to pip when torch is installed: on x86, point it at PyTorch's index of CPU wheels to leave CUDA out of the image.
ARG TORCH_PIP_ARGS=""

# The compiler builds the native step at install; KubeRay's probes call wget. Debian keeps one version of each at a time:
# a pin would only make the build fail on the day of a security fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 cloudmatrix \
    && install -d -o cloudmatrix -g cloudmatrix /app /tmp/ray
WORKDIR /app
USER 1000:1000
ENV PATH=/app/.venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# torch first and alone: its layer is the largest and changes only with its version in pyproject.toml.
COPY --chown=1000:1000 pyproject.toml ./
RUN python -m venv .venv \
    && sed -n 's/^ *"\(torch==[^"]*\)".*/\1/p' pyproject.toml > .venv/torch.txt \
    && python -m pip install ${TORCH_PIP_ARGS} --requirement .venv/torch.txt

COPY --chown=1000:1000 . .
RUN python -m pip install -c deploy/constraints.txt -e .

# Ray's dashboard shows the page /pools in every cluster that this image starts, `ray start` included.
ENV PYTHONPATH=/app/serving/scaling/dashboard/site

# Endpoint and Ray dashboard.
EXPOSE 8000 8265
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]

CMD ["cloudmatrix", "serve", "--host", "0.0.0.0"]

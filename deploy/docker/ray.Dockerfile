# Ray head, Ray workers and the scheduler: one image, so that all of them run the same versions. Build from the root:
#   docker build -f deploy/docker/ray.Dockerfile -t accordion-ray .
# For GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
FROM python:3.11.11-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/accordion
ENV PATH=/opt/accordion/bin:$PATH
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN pip install --constraint constraints.txt --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple torch
COPY accordion accordion
COPY workers workers
COPY service service
COPY deploy deploy
# "service,demo,postgresql,mlflow,wandb" adds the packages of these loggers.
ARG EXTRAS=service,demo,postgresql
RUN pip install --constraint constraints.txt ".[$EXTRAS]"

FROM python:3.11.11-slim-bookworm
RUN useradd --uid 10001 --create-home accordion \
    && install --directory --owner=accordion --mode=0700 /srv/accordion /srv/storage
COPY --from=build /opt/accordion /opt/accordion
COPY --chmod=0755 deploy/docker/scheduler.sh /usr/local/bin/accordion-scheduler
ENV PATH=/opt/accordion/bin:$PATH \
    ACCORDION_HOME=/srv/accordion \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_ROTATION_MAX_BYTES=5000000 \
    RAY_ROTATION_BACKUP_COUNT=1 \
    RAY_process_group_cleanup_enabled=1
USER 10001
WORKDIR /srv/accordion
ENTRYPOINT []
CMD ["ray", "--help"]

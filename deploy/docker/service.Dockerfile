# The api, without Ray and, unless EXTRA_PACKAGES adds it, without torch. Build from the root of the repository:
#   docker build -f deploy/docker/service.Dockerfile -t accordion-service .
FROM python:3.11.11-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/accordion
ENV PATH=/opt/accordion/bin:$PATH
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY accordion accordion
COPY workers workers
COPY service service
COPY deploy deploy
RUN pip install --constraint constraints.txt ".[api,postgresql]"
# "numpy torch" lets this api export models (accordion download), and adds about 700 MB.
ARG EXTRA_PACKAGES=""
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN echo "$EXTRA_PACKAGES" | tr ' ' '\n' > extra.txt \
    && pip install --requirement extra.txt --extra-index-url "$TORCH_INDEX" --constraint constraints.txt

FROM python:3.11.11-slim-bookworm
RUN useradd --uid 10001 --create-home accordion \
    && install --directory --owner=accordion --mode=0700 /srv/accordion
COPY --from=build /opt/accordion /opt/accordion
ENV PATH=/opt/accordion/bin:$PATH ACCORDION_HOME=/srv/accordion
USER 10001
WORKDIR /srv/accordion
EXPOSE 8080
ENTRYPOINT ["accordion"]
CMD ["api"]

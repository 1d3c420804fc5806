# docker build -f docker/cpu.Dockerfile -t specresearch:cpu .
FROM python:3.11-slim-bookworm
ARG TORCH=2.13.0
# Extras to install, such as tensorboard,mlflow
ARG EXTRAS=""
# The user's id; the one of your own user lets you delete results that a container wrote.
ARG USER_ID=1000

# torch.compile needs a compiler
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "torch==${TORCH}" --index-url https://download.pytorch.org/whl/cpu
COPY . /src
RUN pip install --no-cache-dir "/src${EXTRAS:+[$EXTRAS]}" && rm -rf /src

RUN useradd --non-unique --create-home --uid "${USER_ID}" specresearch \
    && mkdir -p /cache /work \
    && chown specresearch /cache /work
USER specresearch
ENV HF_HOME=/cache
VOLUME /cache
WORKDIR /work
ENTRYPOINT ["specresearch"]
CMD ["--help"]

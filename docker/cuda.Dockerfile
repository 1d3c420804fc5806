# docker build -f docker/cuda.Dockerfile -t specresearch:cuda .
ARG CUDA=13.0.2

FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build
ARG TORCH=2.13.0
# Wheels for the CUDA version above
ARG TORCH_INDEX=https://download.pytorch.org/whl/cu130
# Extras to install, such as tensorboard,mlflow
ARG EXTRAS=""
# 1 compiles flash-attn, which takes long
ARG FLASH=0

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/specresearch
ENV PATH=/opt/specresearch/bin:$PATH
RUN pip install --no-cache-dir "torch==${TORCH}" --index-url "${TORCH_INDEX}"
COPY . /src
RUN pip install --no-cache-dir "/src${EXTRAS:+[$EXTRAS]}"
# flash-attn is built against the torch that is installed
# hadolint ignore=DL3013
RUN if [ "${FLASH}" = 1 ]; then \
    pip install --no-cache-dir ninja packaging setuptools wheel \
    && pip install --no-cache-dir --no-build-isolation "/src[flash]"; \
    fi

FROM nvidia/cuda:${CUDA}-base-ubuntu24.04
# The user's id; the one of your own user lets you delete results that a container wrote.
ARG USER_ID=1000

# torch.compile needs a compiler and Python's headers
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/specresearch /opt/specresearch
ENV PATH=/opt/specresearch/bin:$PATH

RUN useradd --non-unique --create-home --uid "${USER_ID}" specresearch \
    && mkdir -p /cache /work \
    && chown specresearch /cache /work
USER specresearch
ENV HF_HOME=/cache
VOLUME /cache
WORKDIR /work
ENTRYPOINT ["specresearch"]
CMD ["--help"]

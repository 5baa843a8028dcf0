# Images of Longtake for Radeon (rocm), NVIDIA (cuda) and any processor (cpu). docs/install.md says how to use
# them. The packages come through scripts/setup.sh, as on any other machine.

FROM debian:bookworm-slim AS base
ARG UID=1000
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid "$UID" --user-group --create-home longtake \
    && install --directory --owner=longtake --group=longtake /longtake /longtake/outputs /models
USER $UID
WORKDIR /longtake
COPY --chown=longtake:longtake scripts/setup.sh scripts/
COPY --chown=longtake:longtake requirements.txt constraints.txt pyproject.toml ./
# Weights, LoRAs and the list of added models are in /models. What is learned on the machine, such as the
# kernels of MIOpen and Triton, is at its usual places in the home folder.
ENV HF_HOME=/models/huggingface LONGTAKE_LORAS=/models/loras LONGTAKE_WEIGHTS=/models/weights \
    LONGTAKE_UPSCALE_MODELS=/models/upscale_models XDG_DATA_HOME=/models/data PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1
EXPOSE 7860
ENTRYPOINT [".venv/bin/python"]
# Only the container's own machine could reach 127.0.0.1 here. This address makes a password obligatory.
CMD ["demo_gradio.py", "--server", "0.0.0.0"]
HEALTHCHECK --start-period=120s --timeout=10s \
    CMD [".venv/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7860/', timeout=8)"]

# No card can be seen while an image is built, so each target names its hardware. The last command of each
# fails if torch's index could not be reached and another build came from the default index.
FROM base AS rocm
RUN bash -euc '. scripts/setup.sh; find_hardware() { echo rocm; }; set_up torch requirements' \
    && .venv/bin/python -c "import torch; assert torch.version.hip, torch.__version__"
COPY --chown=longtake:longtake . .

FROM base AS cuda
RUN bash -euc '. scripts/setup.sh; find_hardware() { echo cuda; }; set_up torch requirements' \
    && .venv/bin/python -c "import torch; assert torch.version.cuda, torch.__version__"
COPY --chown=longtake:longtake . .

FROM base AS cpu
RUN bash -euc '. scripts/setup.sh; find_hardware() { echo cpu; }; set_up torch requirements' \
    && .venv/bin/python -c "import torch; assert torch.__version__"
COPY --chown=longtake:longtake . .

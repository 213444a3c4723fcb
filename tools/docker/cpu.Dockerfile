# mindgspo on a CPU: training of small models, checks and plans, the dry run, emulated cards (x86-64).
#   docker build -f tools/docker/cpu.Dockerfile -t mindgspo:cpu .
#   docker run --rm -it --shm-size=2g -v "$PWD/runs:/home/user/runs" mindgspo:cpu run /opt/mindgspo/examples/arithmetic/gspo.yaml
FROM python:3.11-slim-bookworm

# g++ for the kernels, gcc and binutils for the stand-ins of CANN; libgomp for MindSpore.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ binutils libgomp1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/mindgspo
COPY . .
RUN pip install --no-cache-dir -e ".[mindspore]" -e tools/kernels -e tools/math_answers -e tools/ascend_emulator

RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["mindgspo"]
CMD ["--help"]

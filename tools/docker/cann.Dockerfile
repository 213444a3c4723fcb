# UNVERIFIED: never built, never run on a card. mindgspo on a CANN image, for Atlas A2 (CHIP=910b) and A3 (CHIP=a3).
#   docker build -f tools/docker/cann.Dockerfile --build-arg CHIP=a3 -t mindgspo:cann .
# Driver and devices come from the host, see docs/first_day.md.
ARG CANN=9.1.0
ARG CHIP=910b
FROM quay.io/ascend/cann:${CANN}-${CHIP}-ubuntu22.04-py3.11

RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ binutils \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/mindgspo
COPY . .
# A MindSpore that the image brings belongs to its CANN, and stays.
RUN python3 -c "import importlib.metadata as m; m.version('mindspore')" \
    || pip install --no-cache-dir "mindspore>=2.9,<2.11"
RUN pip install --no-cache-dir -e . -e tools/kernels -e tools/math_answers -e tools/ascend_emulator

# The user must be in the group of /dev/davinci*, whose number is the host's (1000 by the driver's installer).
ARG HWHIAIUSER_GID=1000
RUN (getent group ${HWHIAIUSER_GID} || groupadd --gid ${HWHIAIUSER_GID} HwHiAiUser) \
    && useradd --create-home --groups ${HWHIAIUSER_GID} user
USER user
WORKDIR /home/user
ENTRYPOINT ["/bin/bash", "-c", "source /usr/local/Ascend/ascend-toolkit/set_env.sh && exec mindgspo \"$@\"", "mindgspo"]
CMD ["doctor"]

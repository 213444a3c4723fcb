"""The folder that stands in for CANN's root: what MindSpore and its own kernels read there beside the libraries."""

from __future__ import annotations

from pathlib import Path

LIBRARIES = Path("ascend-toolkit", "latest", "lib64")
"""MindSpore's plugin takes the folder two above the library of `aclrtMalloc` for the root, and wants it to look like
one."""
_GIB = 2**30
# Cube and vector cores, GiB of device memory, MiB of L2 cache, family: CANN's data/platform_config/<name>.ini. That of
# the Ascend910_9391 was not to be had: cores by NPUTargetSpec.td of Ascend/AscendNPU-IR
# (MindSpore's own kernels count 25 cube cores for their workspaces), the rest as of a 910B1.
SOCS = {
    "Ascend910B1": (24, 48, 64, 192, "Ascend910B"),
    "Ascend910B3": (20, 40, 64, 192, "Ascend910B"),
    "Ascend910B4": (20, 40, 32, 96, "Ascend910B"),
    "Ascend910_9391": (24, 48, 64, 192, "Ascend910_93"),
}


def fill_root(libraries: Path) -> None:
    """Write into the root of these libraries what the host code of MindSpore's own kernels reads: a file for each card,
    with what it asks for, and the libraries a second time under `runtime`."""
    (libraries.parent / "runtime").symlink_to(".")
    folder = libraries.parent / "x86_64-linux" / "data" / "platform_config"
    folder.mkdir(parents=True)
    for name, (cube, vector, memory, cache, family) in SOCS.items():
        (folder / f"{name}.ini").write_text(
            f"""[version]
SoC_version={name}
Short_SoC_version={family}
CCEC_AIC_version=dav-c220-cube
CCEC_AIV_version=dav-c220-vec
[SoCInfo]
ai_core_cnt={cube}
cube_core_cnt={cube}
vector_core_cnt={vector}
ai_cpu_cnt=6
memory_size={memory * _GIB}
l2_size={cache * 2**20}
[AICoreSpec]
l0_a_size=65536
l0_b_size=65536
l0_c_size=131072
l1_size=524288
ub_size=196608
ubblock_size=32
""",
            encoding="utf-8",
        )

"""The experiments and model configurations that come with this package."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_NAMED = {Path("quickstart"): Path("examples", "arithmetic", "gspo.yaml")}


def shipped_folder() -> Path:
    """The folder with `examples` and `model_configs`: of the repository, or where pip has put them."""
    repository = Path(__file__).resolve().parents[2]
    if (repository / "examples").is_dir():
        return repository
    return Path(sysconfig.get_path("data"), "share", "mindgspo")


def experiment_file(path: Path) -> Path:
    """A file of the user's, by its path; else one that is shipped, by its path below `shipped_folder` or as
    `quickstart`."""
    shipped = shipped_folder() / _NAMED.get(path, path)
    return shipped if not path.exists() and not path.is_absolute() and shipped.is_file() else path

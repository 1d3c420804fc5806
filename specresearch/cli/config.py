"""Where the configuration lies."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def conf_dir(package: Path = PACKAGE) -> Path:
    """Return the folder conf/.

    It lies inside an installed wheel's package, and beside the package of a checkout.
    """
    candidates = (package / "conf", package.parent / "conf")
    for candidate in candidates:
        if (candidate / "run.yaml").is_file():
            return candidate
    searched = " and ".join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(
        f"conf/run.yaml is missing; searched {searched}; install the package again"
    )

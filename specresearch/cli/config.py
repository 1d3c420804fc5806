"""Where the configuration lies, and which of its keys a command knows."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

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


def check_keys(cfg: DictConfig, config_name: str, *optional: str) -> None:
    """Raise ValueError for top-level keys that nothing reads; Hydra lets `+anything=1` pass.

    The known keys are the keys and groups of conf/<config_name>.yaml, and `optional`.
    """
    defaults = OmegaConf.load(conf_dir() / f"{config_name}.yaml")
    known = {*map(str, defaults), *optional} - {"defaults", "hydra"}
    for entry in defaults.defaults:
        if isinstance(entry, DictConfig):
            known |= {str(group).removeprefix("optional ") for group in entry}
    for key in sorted(map(str, cfg)):
        if key not in known:
            raise ValueError(f"unknown key {key!r}; there are: {', '.join(sorted(known))}")

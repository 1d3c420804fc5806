"""`python -m specresearch.plan target=llama3_1_70b gpu=2xh100`: what fits, and when it pays."""

import yaml
from omegaconf import DictConfig, OmegaConf

from specresearch.cli import entry_point, output_folder, quick_imports, stay_offline_without_hub
from specresearch.files import replace_text
from specresearch.files.lock import lock_folder

PLAN = "plan.json"


def main() -> None:
    entry_point(plan, "plan")


def plan(cfg: DictConfig) -> None:
    """Plan one deployment and write it into Hydra's output folder."""
    # Wrong settings have been refused by now, without waiting for these imports.
    with quick_imports():
        from specresearch.models.random_weights import shape_names
        from specresearch.planning import make_plan, plan_record, print_plan
        from specresearch.results.folder import CONFIG, write_json

    stay_offline_without_hub(cfg, known=[*shape_names(), *shape_names(heads=True)])
    path = output_folder()
    with lock_folder(path):
        if (path / PLAN).exists():
            raise ValueError(f"{path} already holds a plan; choose another hydra.run.dir")
        made = make_plan(cfg)
        config = OmegaConf.to_container(cfg, resolve=True)
        replace_text(path / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        write_json(path / PLAN, plan_record(made))
        print_plan(made, path / PLAN)


if __name__ == "__main__":
    main()

"""Settings of datasets and trackers."""

from collections.abc import Iterator
from typing import Any, Literal

from specresearch.settings.base import Choice, Settings, key, seed_key


class DatasetSchema(Settings):
    name: str = key("name of the sample in the package, and in messages", "cnndm")
    format: str = key("format of the records", "sharegpt")
    template: str = key("prompt template: raw, chat, summary, maths or code", "chat")
    path: str | None = key("a local file in that format", "ShareGPT.json", min_length=1)
    source: Literal["auto", "hub", "sample"] = key("auto tries the hub, then the sample", "sample")
    hub_id: str | None = key("any dataset of the hub", "openai/gsm8k", default=None)
    config: str | None = key("configuration of the hub dataset", "main", default=None)
    split: str | None = key("split of the hub dataset", "test", default=None)
    revision: str | None = key("commit, tag or branch on the hub", "main", default=None)
    hub_file: str | None = key("one file of that dataset's repository", "data.json", default=None)
    field: str | None = key("the field that holds the prompt", "question", default=None)
    limit: int | None = key("rows to use; null takes all", 100, ge=1)
    shuffle: bool = key("choose rows at random, by seed", True)
    streaming: bool = key("read no more rows than needed, for large datasets", True)
    seed: int = seed_key("of the choice")
    max_turns: int | None = key("turns to keep of each row; null keeps all", 1, ge=1)
    max_prompt_tokens: int | None = key("longest prompt", 1024, ge=1)
    overlong: Literal["cut", "refuse"] = key("what happens to longer prompts", "refuse")

    def conflicts(self) -> Iterator[str]:
        if self.source == "hub" and self.hub_id is None:
            yield f"dataset.source=hub, but {self.name} has no dataset.hub_id"
        if self.streaming and self.hub_file is not None and self.path is None:
            yield (
                f"dataset.streaming=true cannot read a single file ({self.hub_file}) of the hub; "
                "set dataset.hub_file=null and a dataset.split, or download it for dataset.path"
            )


DATASET = Choice("dataset", {"specresearch.data.PromptDataset": DatasetSchema})


class NoTrackerSchema(Settings):
    """Nothing is tracked."""


class _CurvesSchema(Settings):
    every: int = key("steps averaged in one point of the live curves", 10, ge=1)


class TensorBoardSchema(_CurvesSchema):
    """Settings of tracker=tensorboard."""


class MlflowSchema(_CurvesSchema):
    uri: str | None = key(
        "server or database; null takes MLFLOW_TRACKING_URI, or mlflow.db here",
        "http://localhost:5000",
    )
    experiment: str = key("experiment that the run belongs to", "specresearch")
    name: str | None = key("name of the run", "ngram-10")


class WandbSchema(_CurvesSchema):
    project: str = key("project on Weights & Biases", "specresearch")
    mode: Literal["online", "offline", "disabled"] = key("offline needs no login", "offline")
    entity: str | None = key("user or team", "my-team")
    name: str | None = key("name of the run", "ngram-10")
    group: str | None = key("group of runs", "draft-lengths")
    tags: list[str] = key("tags of the run", ["ngram"])


TRACKER: Any = Choice(
    "tracker",
    {
        "specresearch.trackers.NoTracker": NoTrackerSchema,
        "specresearch.trackers.MlflowTracker": MlflowSchema,
        "specresearch.trackers.TensorBoardTracker": TensorBoardSchema,
        "specresearch.trackers.WandbTracker": WandbSchema,
    },
)

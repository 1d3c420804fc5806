"""How a drafter is published: its model card always, its upload to the hub if asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from specresearch.data.hub import offline_switch, probe
from specresearch.training.publishing.card import CARD, model_card


@dataclass(frozen=True)
class Publication:
    """Where a drafter is published, and under which licence.

    Attributes:
        push_to_hub: Repository on the hub, user/name; None uploads nothing.
        private: Create the repository as a private one.
        license: Licence of the weights, such as apache-2.0; None: the card says that none is set.
    """

    push_to_hub: str | None = None
    private: bool = False
    license: str | None = None

    def check(self, *, is_sweep: bool = False) -> None:
        """Raise ValueError if an upload cannot work, before hours of training.

        Args:
            is_sweep: Whether other jobs would upload to the same repository.
        """
        if self.push_to_hub is None:
            return
        setting = f"push_to_hub={self.push_to_hub}"
        if is_sweep:
            raise ValueError(
                f"{setting}: the jobs of a sweep would overwrite one another; sweep without it, "
                "and then resume the best job alone with it (hydra.run.dir=<its folder>)"
            )
        namespace = _namespace(self.push_to_hub)
        switch = offline_switch()
        if switch:
            raise ValueError(f"{setting} needs the hub, and {switch} is set; unset it")
        if get_token() is None:
            raise ValueError(f"{setting} needs a login; run `hf auth login`, or set HF_TOKEN")
        api = HfApi()
        reason = probe(api.endpoint)
        if reason:
            raise ValueError(f"{setting}: the hub {api.endpoint} is unreachable ({reason})")
        try:
            user = api.whoami()
        except HfHubHTTPError as error:
            raise ValueError(
                f"{setting}: the hub refuses your token ({_first_line(error)}); run "
                "`hf auth login` with one that may write"
            ) from error
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise ValueError(
                f"{setting}: your token may only read; run `hf auth login` with one that may write"
            )
        names = [user["name"], *(organisation["name"] for organisation in user.get("orgs", ()))]
        if namespace not in names:
            raise ValueError(
                f"{setting}: your login may write to {', '.join(names)}; use "
                f"push_to_hub={names[0]}/{self.push_to_hub.partition('/')[2]}"
            )
        self._check_license()

    def _check_license(self) -> None:
        """Let the hub judge the licence, which it would otherwise refuse after training."""
        metadata = ModelCardData(license=self.license)
        try:
            ModelCard(f"---\n{metadata.to_yaml()}\n---\n").validate()
        except ValueError as error:
            raise ValueError(
                f"the hub does not know license={self.license} ({_first_line(error)}); use one of "
                "its identifiers, such as apache-2.0, or other"
            ) from error

    def publish(
        self,
        folder: Path,
        method: str,
        target: str,
        provenance: Mapping[str, Any],
        layout: str | None = None,
    ) -> str | None:
        """Write the drafter's model card, and upload its folder if a repository is set.

        Args:
            method: Proposer that drafts with it.
            target: Folder, hub id or zoo name.
            provenance: How it was trained; empty if unknown.
            layout: The layout of an exported head; None as training saves it.

        Returns:
            The address of the repository, or None without an upload.

        Raises:
            ValueError: If the upload fails; the folder stays.
        """
        name = self.push_to_hub or folder.name
        text = model_card(name, method, target, provenance, layout=layout, license=self.license)
        (folder / CARD).write_text(text, encoding="utf-8")
        if self.push_to_hub is None:
            return None
        api = HfApi()
        try:
            url = api.create_repo(self.push_to_hub, private=self.private, exist_ok=True)
            api.upload_folder(
                repo_id=self.push_to_hub,
                folder_path=folder,
                commit_message="Upload with specresearch",
                ignore_patterns=["*.part"],
            )
        except (HfHubHTTPError, OSError) as error:
            raise ValueError(
                f"the upload to {self.push_to_hub} failed ({_first_line(error)}); the drafter is "
                f"in {folder}, and `hf upload {self.push_to_hub} {folder}` tries again"
            ) from error
        return str(url)


def _namespace(repo: str) -> str:
    """Return the user or organisation of user/name, or raise ValueError."""
    try:
        validate_repo_id(repo)
        namespace, _, name = repo.partition("/")
        if not name:
            raise HFValidationError("it names no user or organisation")
    except HFValidationError as error:
        raise ValueError(
            f"push_to_hub={repo} is no repository of the hub ({_first_line(error)}); use "
            "push_to_hub=<user>/<name>"
        ) from error
    return namespace


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

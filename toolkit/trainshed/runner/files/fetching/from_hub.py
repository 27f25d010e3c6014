"""Datasets of the Hugging Face Hub as items: listed by huggingface_hub at one commit, read in ranges as files of the web."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from trainshed.base.errors import TrainshedError, shorten
from trainshed.base.secrets import mask_text

from ...job.addresses import HUB
from .from_web import Web
from .items import Item, Passing

INSTALL = "pip install huggingface_hub"
Value = TypeVar("Value")


class Dataset(Web):
    """The source: a dataset, or a folder of it.

    Args:
        address: `hf://datasets/OWNER/NAME[@REVISION][/folder or file]`.

    Raises:
        TrainshedError: huggingface_hub is not installed.
    """

    def __init__(self, address: str) -> None:
        try:
            import huggingface_hub
        except ImportError:
            raise TrainshedError(f"{address}: huggingface_hub is not installed", hint=INSTALL) from None
        super().__init__()
        self.hub: Any = huggingface_hub
        self.address = address
        owner, name, *rest = f"{address.removeprefix(HUB)}//".split("/")
        name, _, self.revision = name.partition("@")
        self.dataset, self.path = f"{owner}/{name}", "/".join(rest).strip("/")
        token = huggingface_hub.get_token()
        self.token = {"Authorization": f"Bearer {token}"} if token else {}

    def files(self) -> list[Item]:
        """All files at the newest commit of the revision, sorted by name. Raises Passing, TrainshedError."""
        return sorted(self._telling(self._files), key=lambda item: item.name)

    def _files(self) -> list[Item]:
        api = self.hub.HfApi()
        commit = api.dataset_info(self.dataset, revision=self.revision or None).sha
        found = []
        for one in api.list_repo_tree(self.dataset, recursive=True, revision=commit, repo_type="dataset"):
            size, within = getattr(one, "size", None), self._name(one.path)
            if size is None or not within:  # a folder, or another one's
                continue
            url = self.hub.hf_hub_url(self.dataset, one.path, repo_type="dataset", revision=commit)
            content = one.lfs.sha256 if one.lfs else one.blob_id
            found.append(Item(within, url, size, f"hub {content}"))
        if not found:
            raise TrainshedError(f"{self.address}: there is no such file or folder in the dataset")
        return found

    def _name(self, path: str) -> str:
        """A file's name below the folder that was asked for; "" if it is elsewhere."""
        if not self.path:
            return path
        if path == self.path:
            return path.rpartition("/")[2]
        return path.removeprefix(f"{self.path}/") if path.startswith(f"{self.path}/") else ""

    def known(self, item: Item) -> Item:
        """A commit's file does not change."""
        return item

    def _login(self, url: str) -> dict[str, str]:
        return self.token

    def _telling(self, work: Callable[[], Value]) -> Value:
        try:
            return work()
        except TrainshedError:
            raise
        except Exception as error:  # of the hub's own library, and of the one that it asks with, which has changed before
            status = getattr(getattr(error, "response", None), "status_code", None)
            said = mask_text(shorten(str(error) or type(error).__name__, 200))
            if status is None or status >= 500 or status == 429:
                raise Passing(said) from None
            hint = "a login stands in HF_TOKEN, or comes with `hf auth login`" if status in (401, 403) else ""
            raise TrainshedError(f"{self.address}: {said}", hint=hint) from None

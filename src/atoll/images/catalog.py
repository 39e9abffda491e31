"""All images of one state directory: `host`, and root file systems that were added by name."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from atoll.images.host import HostImage
from atoll.images.names import HOST, parse_image_name
from atoll.images.skeleton import write_skeleton
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.rootfs import Overlay, Rootfs

_MAKING = ".making-"  # what is under construction


class ImageCatalog:
    def __init__(self, store: Path, host: HostImage | None = None) -> None:
        self._store = store
        self._host = host or HostImage(store)
        self._skeleton = store / ".skeleton"

    def names(self) -> list[str]:
        return [HOST, *sorted(root.parent.name for root in self._store.glob("[!.]*/root"))]

    def known(self, name: str) -> Rootfs | None:
        """The root of `name`, if that takes no time. To build the host's takes a second, and is for a thread."""
        return self._host.known() if name == HOST else self.resolve(name)

    def check(self, name: str) -> None:
        """Raise if there is no such image."""
        if parse_image_name(name) != HOST and not self._root(name).is_dir():
            raise error(
                ErrorCode.IMAGE_NOT_FOUND,
                f"there is no image {name!r}",
                remedy=f"Use one of: {', '.join(self.names())}.",
                image=name,
            )

    def resolve(self, name: str) -> Rootfs:
        """The root that `name` stands for now."""
        self.check(name)
        if name == HOST:
            return self._host.resolve()
        layers = (str(self._root(name)), str(self._base_layer()))
        return Rootfs(image=name, state=name, overlays=(Overlay(name="root", target="/", layers=layers),))

    def recall(self, name: str, state: str) -> Rootfs:
        """The root that `name` stood for when a sandbox was made on it."""
        return self._host.recall(state) if name == HOST else self.resolve(name)

    def forget(self, used: set[str]) -> None:
        """Remove what no sandbox was made on and nobody can ask for any more. `used` are states of `Rootfs`.

        Not while somebody adds an image.
        """
        self._host.forget(used)
        for unfinished in self._store.glob(f"{_MAKING}*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def add(self, name: str, directory: Path) -> None:
        """Take a copy of a root file system as an image."""
        target = self._store / parse_image_name(name)
        if name == HOST or target.exists():
            raise error(ErrorCode.IMAGE_EXISTS, f"there is an image {name!r} already", remedy="Choose another name.")
        self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self._store))
        try:
            shutil.copytree(directory, work / "root", symlinks=True)
            work.rename(target)
        except OSError:
            shutil.rmtree(work, ignore_errors=True)
            raise

    def _root(self, name: str) -> Path:
        return self._store / name / "root"

    def _base_layer(self) -> Path:
        if not self._skeleton.is_dir():
            work = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self._store))
            write_skeleton(work)
            work.chmod(0o755)
            work.rename(self._skeleton)
        return self._skeleton

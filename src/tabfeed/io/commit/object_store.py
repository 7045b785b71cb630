"""The requests that a commit sends to an object store, besides writing files.

One of them replaces an object only if it still is the expected one.

S3 has a conditional request for that, ``If-Match`` and ``If-None-Match``, which Arrow's S3 does not
offer and s3fs does. Every other store behind fsspec gets a lock object, made by an exclusive
create where the library has one. Where neither is there (S3 without s3fs, say), a commit looks
before and after: two writers that publish within the same moment may both report success, and the
dataset is the one of the later, whole.
"""

from __future__ import annotations

import json
import posixpath
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import pyarrow.fs as pafs

from tabfeed.errors import MissingExtraError, WriteError
from tabfeed.io.commit.manifest import STAGING, read_now
from tabfeed.io.storage.files import RemotePath
from tabfeed.io.storage.remote import PermanentError, RemoteOptions, translated
from tabfeed.io.storage.retry import FIRST_SHARE, Retrying, retry

__all__ = ["LOCK", "Objects", "objects_of"]

LOCK = "publishing.json"
"""The lock object in the staging folder, for stores without conditional requests."""
_LONGEST_WAIT, _PAUSE = 60.0, 0.05
_TRIES = 5
_LARGEST_COPY = 5 * 2**30  # of one request; s3fs copies larger objects in parts
_AT_ONCE = 1000
# Options of Arrow's that `after_fork` does not hand on: without them it would reach another store.
_ONLY_ARROWS = ("role_arn", "external_id", "force_virtual_addressing", "tls_ca_file_path")


class Objects(Protocol):
    """The objects below a folder."""

    def read(self, name: str) -> tuple[str, str] | None:
        """An object's text and version, which changes with the text; None if there is no object."""
        ...

    def put(self, name: str, text: str) -> None:
        """Put an object, in one request if possible, since uploads in parts can be interrupted."""
        ...

    def swap(self, name: str, text: str, version: str | None, dead: Callable[[str], bool]) -> bool:
        """Put an object if the one there is still `version`; False if another is there.

        `dead` says whether a writer has ended; a lock of its own is then taken away.
        """
        ...

    def copy(self, source: str, target: str, nbytes: int) -> None:
        """Copy an object within the store."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, as far as they are there."""
        ...

    def clear(self, name: str) -> None:
        """Delete a folder and everything in it."""
        ...

    def etags(self, names: Sequence[str]) -> dict[str, str]:
        """The ETags of objects, where the store has them."""
        ...

    def end_uploads(self, ours: Callable[[str], bool]) -> None:
        """Abort the unfinished uploads of the names for which `ours` is true."""
        ...


def objects_of(folder: RemotePath, writer: str) -> Objects:
    """The objects below a folder that is not on this machine, as `writer` changes them."""
    system = _s3fs(_unwrapped(folder.filesystem))
    return _AnyStore(folder, writer) if system is None else _S3Store(folder, system)


def _unwrapped(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    handler = getattr(filesystem, "handler", None)
    return handler.inner if isinstance(handler, Retrying) else filesystem


def _s3fs(filesystem: pafs.FileSystem) -> Any:
    """The s3fs that reaches the same store with the same credentials; None if there is none."""
    if filesystem.type_name == "s3":
        from tabfeed.io.storage.s3 import after_fork

        options = filesystem.__reduce__()[1][0]
        proxy = (options.get("proxy_options") or {}).get("host")
        if proxy or any(options.get(name) for name in _ONLY_ARROWS):
            return None
        try:
            return after_fork(options).handler.fs
        except MissingExtraError:
            return None
    system = getattr(getattr(filesystem, "handler", None), "fs", None)
    protocols = getattr(system, "protocol", ())
    return system if "s3" in protocols and hasattr(system, "call_s3") else None


class _AnyStore:
    """Any store, through Arrow's interface, and fsspec's where there is one."""

    _here = threading.Lock()  # fsspec's memory filesystem looks, then makes

    def __init__(self, folder: RemotePath, writer: str) -> None:
        self._folder, self._filesystem, self._writer = folder, folder.filesystem, writer

    def read(self, name: str) -> tuple[str, str] | None:
        """The text is its own version: each manifest names its writer."""
        try:
            text = read_now(self._folder.child(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnicodeDecodeError:
            return "", "not text"
        return text, text

    def put(self, name: str, text: str) -> None:
        """Through Arrow's interface."""
        path = self._folder.child(name).path
        with self._filesystem.open_output_stream(path, compression=None) as sink:
            sink.write(text.encode())

    def swap(self, name: str, text: str, version: str | None, dead: Callable[[str], bool]) -> bool:
        """Under a lock: look, put, look again."""
        with self._here, self._locked(dead):
            now = self.read(name)
            if (now and now[1]) != version:
                return False
            place = self._folder.child(name)
            new = self._folder.child(STAGING, self._writer, name)  # sftp does not put in one step
            self.put(posixpath.join(STAGING, self._writer, name), text)
            self._filesystem.move(new.path, place.path)
            now = self.read(name)
            return now is not None and now[0] == text

    @contextmanager
    def _locked(self, dead: Callable[[str], bool]) -> Iterator[None]:
        handler = getattr(_unwrapped(self._filesystem), "handler", None)
        system = getattr(handler, "fs", None)
        place = self._folder.child(STAGING, LOCK)
        held = system is not None and self._take(system, place, dead)
        try:
            yield
        finally:
            if held:
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(place.path)

    def _take(self, system: Any, place: RemotePath, dead: Callable[[str], bool]) -> bool:
        """Make the lock object; False where the library cannot make one exclusively."""
        began = time.monotonic()
        while True:
            try:
                system.pipe_file(place.path, json.dumps(self._writer).encode(), mode="create")
                return True
            except FileExistsError:
                owner = self.read(posixpath.join(STAGING, LOCK))
                if owner is not None and dead(owner[0].strip('"')):
                    with suppress(FileNotFoundError):
                        self._filesystem.delete_file(place.path)
                elif time.monotonic() - began > _LONGEST_WAIT:
                    raise WriteError(
                        f"another process is publishing {self._folder.name} now and does not "
                        f"finish; if none is, delete {place.name}, then run it again"
                    ) from None
                else:
                    time.sleep(_PAUSE)
            except (NotImplementedError, ValueError, TypeError):
                return False

    def copy(self, source: str, target: str, nbytes: int) -> None:
        """Through the store."""
        place = self._folder.child(target)
        if "/" in target and _unwrapped(self._filesystem).type_name != "s3":
            self._filesystem.create_dir(posixpath.dirname(place.path), recursive=True)
        self._filesystem.copy_file(self._folder.child(source).path, place.path)

    def delete(self, names: Sequence[str]) -> None:
        """One by one."""
        for name in names:
            with suppress(FileNotFoundError):
                self._filesystem.delete_file(self._folder.child(name).path)

    def clear(self, name: str) -> None:
        """Delete a folder, and the one above if nothing is left in it."""
        with suppress(FileNotFoundError):
            self._filesystem.delete_dir(self._folder.child(name).path)
        above = posixpath.dirname(name)
        if above:
            place = self._folder.child(above)
            selector = pafs.FileSelector(place.path, recursive=True, allow_not_found=True)
            infos = self._filesystem.get_file_info(selector)
            if place.exists and not any(i.type == pafs.FileType.File for i in infos):
                with suppress(FileNotFoundError):
                    self._filesystem.delete_dir(place.path)

    def etags(self, names: Sequence[str]) -> dict[str, str]:
        """Unknown."""
        return {}

    def end_uploads(self, ours: Callable[[str], bool]) -> None:
        """Unknown: a lifecycle rule of the store ends them."""


class _S3Store:
    """S3 through s3fs, past its cache of listings."""

    def __init__(self, folder: RemotePath, system: Any) -> None:
        self._folder, self._system = folder, system
        self._bucket, _, root = folder.path.strip("/").partition("/")
        self._root = f"{root}/" if root else ""

    def _call(self, method: str, **options: Any) -> Any:
        """A request, tried again until the deadline."""
        return self._ask(self._once, method, Bucket=self._bucket, **options)

    async def _once(self, method: str, **options: Any) -> Any:
        """A request without the library's own tries, which would hide what the server says."""
        await self._system.set_session()
        request = getattr(self._system.s3, method)
        return await request(**self._system._get_s3_method_kwargs(request, **options))

    def _ask(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from fsspec.asyn import sync

        def attempt(timeout: float) -> Any:
            return translated(
                lambda: sync(self._system.loop, call, *args, timeout=timeout, **options)
            )

        deadline = (self._folder.remote or RemoteOptions()).deadline
        return retry(attempt, deadline, first=FIRST_SHARE)

    def read(self, name: str) -> tuple[str, str] | None:
        """The version is the ETag."""

        async def get() -> tuple[bytes, str]:
            answer = await self._once("get_object", Bucket=self._bucket, Key=self._root + name)
            async with answer["Body"] as body:
                return await body.read(), str(answer["ETag"])

        try:
            data, etag = self._ask(get)
        except FileNotFoundError:
            return None
        return data.decode("utf-8", "replace"), etag

    def put(self, name: str, text: str) -> None:
        """One request."""
        self._call("put_object", Key=self._root + name, Body=text.encode())

    def swap(self, name: str, text: str, version: str | None, dead: Callable[[str], bool]) -> bool:
        """One conditional request. One whose answer was lost may have done it: look."""
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        for tried in range(1, _TRIES + 1):
            try:
                self._call("put_object", Key=self._root + name, Body=text.encode(), **condition)
                break
            except (FileExistsError, FileNotFoundError):
                break
            except PermanentError as e:
                if "PreconditionFailed" in str(e):
                    break
                if "ConditionalRequestConflict" not in str(e) or tried == _TRIES:
                    raise
                time.sleep(_PAUSE * 2**tried)
        now = self.read(name)
        return now is not None and now[0] == text

    def copy(self, source: str, target: str, nbytes: int) -> None:
        """Within the store."""
        a, b = (self._folder.child(n) for n in (source, target))
        if nbytes > _LARGEST_COPY:
            self._system.cp_file(a.path, b.path)
        else:
            a.filesystem.copy_file(a.path, b.path)

    def delete(self, names: Sequence[str]) -> None:
        """Up to a thousand in a request."""
        keys = [{"Key": self._root + n} for n in names]
        for i in range(0, len(keys), _AT_ONCE):
            some = {"Objects": keys[i : i + _AT_ONCE], "Quiet": True}
            answer = self._call("delete_objects", Delete=some)
            for error in answer.get("Errors", ()):
                raise OSError(f"{error.get('Key')}: {error.get('Message') or error.get('Code')}")

    def clear(self, name: str) -> None:
        """Delete a folder, and what stands for the folder above, which is an empty object."""
        inside = [key for key, _ in self._list(f"{name}/")]
        self.delete([*inside, f"{name}/", f"{posixpath.dirname(name)}/"])

    def etags(self, names: Sequence[str]) -> dict[str, str]:
        """From a listing, which has a thousand at a time."""
        wanted = set(names)
        prefix = posixpath.commonprefix(list(names)) if wanted else ""
        return {key: etag.strip('"') for key, etag in self._list(prefix) if key in wanted}

    def _list(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Names below the folder, and their ETags."""
        for page in self._pages("list_objects_v2", prefix, "ContinuationToken"):
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix(self._root), found["ETag"]

    def end_uploads(self, ours: Callable[[str], bool]) -> None:
        """Where listing them is forbidden, a lifecycle rule of the store has to end them."""
        with suppress(PermissionError):
            for page in self._pages("list_multipart_uploads", "", "KeyMarker"):
                for found in page.get("Uploads") or ():
                    if ours(found["Key"].removeprefix(self._root)):
                        with suppress(FileNotFoundError):
                            self._call(
                                "abort_multipart_upload",
                                Key=found["Key"],
                                UploadId=found["UploadId"],
                            )

    def _pages(self, method: str, prefix: str, marker: str) -> Iterable[dict[str, Any]]:
        given: dict[str, Any] = {}
        while True:
            page = self._call(method, Prefix=self._root + prefix, **given)
            yield page
            following = page.get(f"Next{marker}")
            if not page.get("IsTruncated") or not following:
                return
            given = {marker: following}
            if page.get("NextUploadIdMarker"):
                given["UploadIdMarker"] = page["NextUploadIdMarker"]

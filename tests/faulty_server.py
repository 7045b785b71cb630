"""A slow, unreliable HTTP server on loopback, in a process of its own.

It stands in front of a real S3 server (`upstream`), or serves a folder as a read-only S3 bucket or
web site (`folder`). It adds a delay to each request, limits the bandwidth of each connection,
counts requests and bytes, and misbehaves as it is told::

    with FaultyServer(folder=tmp_path, latency=0.05, bandwidth=1e8) as server:
        server.fail("reset", match="GET .*part_3", times=2)
        ...
        server.stats()["bytes"]

Kinds of misbehaviour: a status ("500", "503", "403"), "reset" (the connection is cut halfway),
"truncate" (the body ends early, politely), "lost" (the request is done, no answer comes),
"hang" (no answer), "slow" (a kilobyte a second), "ignore-range" (the whole file, whatever was
asked).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_BLOCK = 2**16
_SENT_AT_ONCE = 2**21  # each costs this process a wake-up
_CATCH_UP = 0.05  # seconds of bandwidth that a connection which fell behind may make up for
_REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found"}


class FaultyServer:
    """Starts the server; `url` is where it listens."""

    def __init__(
        self,
        *,
        folder: Path | str | None = None,
        upstream: str | None = None,
        latency: float = 0.0,
        bandwidth: float = 0.0,
    ) -> None:
        where = ["--folder", str(folder)] if folder is not None else ["--upstream", str(upstream)]
        speed = ["--latency", str(latency), "--bandwidth", str(bandwidth)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *where, *speed], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the server did not start"

    def __enter__(self) -> FaultyServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _control(self, **order: Any) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/_control", json.dumps(order).encode())
        with urllib.request.urlopen(request) as answer:
            return dict(json.load(answer))

    def fail(self, kind: str, *, match: str = ".*", times: int = 1, after: int = 0) -> None:
        """Misbehave on requests "METHOD /path" that match: `times` of them, `after` some."""
        self._control(fault={"kind": kind, "match": match, "times": times, "after": after})

    def calm(self) -> None:
        """Behave from now on, and count from zero."""
        self._control(calm=True)

    def stats(self) -> dict[str, Any]:
        """Requests, bytes of bodies sent, and most requests at once."""
        return self._control()

    def count(self, match: str) -> int:
        """How many requests "METHOD /path" matched."""
        return sum(1 for line in self._control()["lines"] if re.search(match, line))


@dataclass
class _Fault:
    kind: str
    match: str
    times: int
    after: int

    def hits(self, line: str) -> bool:
        if self.times <= 0 or not re.search(self.match, line):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass
class _Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass
class _Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None  # said in the headers, where it is not that of the body
    file: tuple[Path, int, int] | None = None  # these bytes of a file, and no body

    def read(self) -> None:
        """Make a file's bytes the body."""
        if self.file is not None:
            path, start, stop = self.file
            with path.open("rb") as f:
                self.body, self.file = os.pread(f.fileno(), stop - start, start), None


@dataclass
class _Server:
    options: argparse.Namespace
    faults: list[_Fault] = field(default_factory=list)
    requests: int = 0
    bytes: int = 0
    now: int = 0
    most: int = 0
    lines: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader, writer)) is not None:
                if request.path == "/_control":
                    await self._send(writer, request, self._control(request), 0.0)
                elif not await self._handle(writer, request):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            writer.close()

    def _control(self, request: _Request) -> _Answer:
        order = json.loads(request.body or b"{}")
        if "fault" in order:
            self.faults.append(_Fault(**order["fault"]))
        if order.get("calm"):
            self.faults.clear()
            self.lines.clear()
            self.requests = self.bytes = self.most = 0
        names = ("requests", "bytes", "most", "lines")
        return _Answer(200, {}, json.dumps({n: getattr(self, n) for n in names}).encode())

    async def _handle(self, writer: asyncio.StreamWriter, request: _Request) -> bool:
        """Answer one request; False when the connection is to end."""
        line = f"{request.method} {request.target}"
        self.requests += 1
        self.lines.append(line)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            fault = next((f.kind for f in self.faults if f.hits(line)), None)
            await asyncio.sleep(self.options.latency)
            return await self._misbehave(writer, request, fault)
        finally:
            self.now -= 1

    async def _misbehave(
        self, writer: asyncio.StreamWriter, request: _Request, fault: str | None
    ) -> bool:
        if fault == "hang":
            await asyncio.sleep(600)
            return False
        if fault is not None and fault.isdigit():
            return await self._send(writer, request, _error(int(fault)), 0.0)
        if fault == "ignore-range":
            request.headers.pop("range", None)
        answer = await self._answer(request)
        if fault is None and answer.file is not None:
            return await self._send_file(writer, answer)
        answer.read()
        if fault == "lost":
            return False
        speed = 1000.0 if fault == "slow" else self.options.bandwidth
        if fault not in ("reset", "truncate"):
            return await self._send(writer, request, answer, speed)
        answer.length = len(answer.body)
        answer.body = answer.body[: len(answer.body) // 2]
        await self._send(writer, request, answer, speed)
        if fault == "reset":
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        return False

    async def _answer(self, request: _Request) -> _Answer:
        if self.options.upstream:
            return await asyncio.to_thread(_forward, self.options.upstream, request)
        return _from_folder(Path(self.options.folder), request)

    async def _send_file(self, writer: asyncio.StreamWriter, answer: _Answer) -> bool:
        """Bytes from the page cache to the socket, which cost this process next to nothing."""
        assert answer.file is not None
        path, start, stop = answer.file
        answer.length = stop - start
        writer.write(_head(answer))
        await writer.drain()
        loop, speed, due = asyncio.get_running_loop(), self.options.bandwidth, time.monotonic()
        with path.open("rb") as file:
            while start < stop:
                size = min(_SENT_AT_ONCE, stop - start)
                await loop.sendfile(writer.transport, file, start, size)
                start += size
                self.bytes += size
                if speed:
                    due = max(due, time.monotonic() - _CATCH_UP) + size / speed
                    await asyncio.sleep(due - time.monotonic())
        return True

    async def _send(
        self, writer: asyncio.StreamWriter, request: _Request, answer: _Answer, speed: float
    ) -> bool:
        writer.write(_head(answer))
        body = memoryview(b"" if request.method == "HEAD" else answer.body)
        start, block = time.monotonic(), 1000 if 0 < speed < 10_000 else _BLOCK
        for at in range(0, len(body), block):
            piece = body[at : at + block]
            writer.write(piece)
            await writer.drain()
            self.bytes += len(piece) if request.path != "/_control" else 0
            if speed and (ahead := start + (at + len(piece)) / speed - time.monotonic()) > 0.002:
                await asyncio.sleep(ahead)
        await writer.drain()
        return True


def _head(answer: _Answer) -> bytes:
    length = len(answer.body) if answer.length is None else answer.length
    head = {"Content-Length": str(length), **answer.headers}
    reason = _REASONS.get(answer.status, "Error")
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{k}: {v}" for k, v in head.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> _Request | None:
    first = (await reader.readline()).decode().split()
    if len(first) < 2:
        return None
    headers = {}
    while (line := (await reader.readline()).decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.pop("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        del headers["transfer-encoding"]
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return _Request(first[0], first[1], headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def _forward(upstream: str, request: _Request) -> _Answer:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(upstream).netloc, timeout=60)
    try:
        connection.request(request.method, request.target, request.body, request.headers)
        answer = connection.getresponse()
        body = answer.read()
        skip = {"transfer-encoding", "connection", "content-length"}
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in skip}
        said = answer.getheader("content-length")
        length = int(said) if said is not None and request.method == "HEAD" else None
        return _Answer(answer.status, headers, body, length)
    finally:
        connection.close()


def _error(status: int) -> _Answer:
    code = {403: "ExpiredToken", 404: "NoSuchKey", 503: "SlowDown"}.get(status, "InternalError")
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    return _Answer(status, {"Content-Type": "application/xml"}, body.encode())


# -- a folder as a bucket ---------------------------------------------------------------


def _from_folder(root: Path, request: _Request) -> _Answer:
    query = request.query
    if "list-type" in query:
        return _listing(root, request.path.strip("/"), query)
    path = root / request.path.strip("/")
    if path.is_dir() and path.parent == root and request.method == "HEAD":
        return _Answer(200)  # there is such a bucket
    if not path.is_file():
        return _error(404)
    facts = path.stat()
    tag = hashlib.md5(f"{facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()
    headers = {"ETag": f'"{tag}"', "Accept-Ranges": "bytes"}
    headers["Last-Modified"] = time.strftime(
        "%a, %d %b %Y %H:%M:%S GMT", time.gmtime(facts.st_mtime)
    )
    if request.method == "HEAD":
        return _Answer(200, headers, b"", facts.st_size)
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if asked is None:
        return _Answer(200, headers, file=(path, 0, facts.st_size))
    start = int(asked[1])
    stop = min(int(asked[2]) + 1 if asked[2] else facts.st_size, facts.st_size)
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{facts.st_size}"
    return _Answer(206, headers, file=(path, start, stop))


def _listing(root: Path, bucket: str, query: dict[str, str]) -> _Answer:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    base = root / bucket
    keys = sorted(p.relative_to(base).as_posix() for p in base.rglob("*") if p.is_file())
    contents, folders = "", set()
    keys = [k for k in keys if k.startswith(prefix)]
    for key in keys:
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            continue
        facts = (base / key).stat()
        tag = hashlib.md5(f"{facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(facts.st_mtime))
        contents += (
            f"<Contents><Key>{escape(key)}</Key><Size>{facts.st_size}</Size>"
            f"<LastModified>{when}</LastModified><ETag>&quot;{tag}&quot;</ETag></Contents>"
        )
    common = "".join(
        f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders)
    )
    body = (
        '<?xml version="1.0"?><ListBucketResult '
        'xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        f"<KeyCount>{len(keys)}</KeyCount>{contents}{common}</ListBucketResult>"
    )
    return _Answer(200, {"Content-Type": "application/xml"}, body.encode())


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder")
    parser.add_argument("--upstream")
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--bandwidth", type=float, default=0.0)
    server = _Server(parser.parse_args())
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=2**20)
    host, port = listening.sockets[0].getsockname()[:2]
    print(f"http://{host}:{port}", flush=True)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())

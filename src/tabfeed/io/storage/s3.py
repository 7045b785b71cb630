"""``s3://`` through Arrow: what users write in `storage_options`, in Arrow's terms.

The names are those of s3fs, which pandas and Dask users know, Arrow's own, and the ``aws_``
names that Polars takes. Whatever else is asked for, s3fs does. Without options both find
credentials in the usual places: the environment, the configuration files, the machine's role.

A process forked from one that has used Arrow's S3 goes through s3fs too: a lock that a request of
the parent held at the fork is held for ever in the child, and Arrow would wait for it.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import MissingExtraError

__all__ = ["after_fork", "arrow_s3", "patient_writer"]

_OWN_TRIES, _FIRST_WAIT = 3, 0.05
_LONGEST_STALL, _STALL_SHARE = 10.0, 30
_NAMES = {
    "key": "access_key",
    "aws_access_key_id": "access_key",
    "secret": "secret_key",
    "aws_secret_access_key": "secret_key",
    "token": "session_token",
    "aws_session_token": "session_token",
    "anon": "anonymous",
    "endpoint_url": "endpoint_override",
    "aws_endpoint_url": "endpoint_override",
    "region_name": "region",
    "aws_region": "region",
}
_OWN = {
    "access_key",
    "secret_key",
    "session_token",
    "anonymous",
    "endpoint_override",
    "region",
    "scheme",
    "role_arn",
    "external_id",
    "request_timeout",
    "connect_timeout",
    "force_virtual_addressing",
}


def arrow_s3(
    bucket: str, storage_options: Mapping[str, Any], deadline: float
) -> pafs.FileSystem | None:
    """Arrow's S3 with these options; None where Arrow lacks S3 or one of the options.

    A request that stalls is left so early that the library's own three tries end before ours does.

    Examples
    --------
    >>> arrow_s3("b", {"requester_pays": True}, 300.0) is None
    True
    """
    options = in_arrows_terms(storage_options)
    if options is None or not hasattr(pafs, "S3FileSystem"):
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:  # which Arrow itself does not look for
        options.setdefault("endpoint_override", endpoint)
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = _region_of(bucket)
    if _users and os.getpid() not in _users:
        return after_fork(options)
    patience = min(_LONGEST_STALL, max(1.0, deadline / _STALL_SHARE))
    defaults = {"connect_timeout": patience, "request_timeout": patience}
    environment = tuple((n, v) for n, v in sorted(os.environ.items()) if n.startswith("AWS_"))
    return _filesystem(tuple(sorted({**defaults, **options}.items())), environment)


_users: set[int] = set()  # the process that uses Arrow's S3, or a parent that did


@lru_cache(maxsize=16)
def _filesystem(
    options: tuple[tuple[str, Any], ...], environment: tuple[tuple[str, str], ...]
) -> pafs.FileSystem:
    """One for all who ask alike: to make another, Arrow waits for every request on its way."""
    _users.add(os.getpid())
    few = pafs.AwsDefaultS3RetryStrategy(max_attempts=_OWN_TRIES)
    return pafs.S3FileSystem(**dict(options), retry_strategy=few)


def patient_writer(filesystem: pafs.FileSystem, deadline: float) -> pafs.FileSystem:
    """The same store for writing: each part of an upload is sent again until the deadline.

    Only the library itself can repeat a part. It waits 0.05 s, then twice as long each time.
    """
    return _patient(pickle.dumps(filesystem), deadline)


@lru_cache(maxsize=16)
def _patient(pickled: bytes, deadline: float) -> pafs.FileSystem:
    options = pickle.loads(pickled).__reduce__()[1][0]
    tries = max(_OWN_TRIES, int(math.log2(deadline / _FIRST_WAIT)))
    return pafs.S3FileSystem(
        **options, retry_strategy=pafs.AwsDefaultS3RetryStrategy(max_attempts=tries)
    )


def after_fork(options: Mapping[str, Any]) -> pafs.FileSystem:
    """The same store through s3fs, for a child of a process that uses Arrow's.

    Parameters
    ----------
    options
        In Arrow's terms.
    """
    import fsspec

    given = {k: v for k, v in options.items() if v not in (None, "", False)}
    endpoint = given.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{given.get('scheme', 'https')}://{endpoint}"
    try:
        system = fsspec.filesystem(
            "s3",
            key=given.get("access_key"),
            secret=given.get("secret_key"),
            token=given.get("session_token"),
            anon=bool(given.get("anonymous")),
            endpoint_url=endpoint,
            config_kwargs={"retries": {"total_max_attempts": 2}},  # our deadline counts
            client_kwargs={"region_name": given["region"]} if given.get("region") else None,
        )
    except ImportError as e:
        raise MissingExtraError("s3", "s3:// files in forked processes") from e
    return pafs.PyFileSystem(pafs.FSSpecHandler(system))


def in_arrows_terms(storage_options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same options under Arrow's names; None if one has none.

    Examples
    --------
    >>> in_arrows_terms({"key": "k", "secret": "s", "client_kwargs": {"region_name": "eu-west-1"}})
    {'access_key': 'k', 'secret_key': 's', 'region': 'eu-west-1'}
    """
    flat = {**storage_options, **storage_options.get("client_kwargs", {})}
    flat.pop("client_kwargs", None)
    if "use_ssl" in flat:
        flat["scheme"] = "https" if flat.pop("use_ssl") else "http"
    options = {_NAMES.get(name, name): v for name, v in flat.items() if v is not None}
    if not options.keys() <= _OWN or ("access_key" in options) != ("secret_key" in options):
        return None
    return options


def _region_of(bucket: str) -> str | None:
    """The region of an Amazon bucket: other regions refuse its requests."""
    known = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return known or _ask_region(bucket)


@lru_cache(maxsize=64)
def _ask_region(bucket: str) -> str | None:
    try:
        return str(pafs.resolve_s3_region(bucket))
    except OSError:  # no such bucket, or no way out: the first request will say so better
        return None

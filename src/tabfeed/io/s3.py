"""``s3://`` through Arrow: what users write in `storage_options`, in Arrow's terms.

The names are those of s3fs, which pandas and Dask users know, Arrow's own, and the ``aws_``
names that Polars takes. Whatever else is asked for, s3fs does. Without options both find
credentials in the usual places: the environment, the configuration files, the machine's role.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow.fs as pafs

__all__ = ["arrow_s3"]

_CONNECT_TIMEOUT, _STALL_TIMEOUT = 10.0, 20.0
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


def arrow_s3(bucket: str, storage_options: Mapping[str, Any]) -> pafs.FileSystem | None:
    """Arrow's S3 with these options; None where Arrow lacks S3 or one of the options.

    Examples
    --------
    >>> arrow_s3("b", {"requester_pays": True}) is None
    True
    """
    options = in_arrows_terms(storage_options)
    try:
        from pyarrow.fs import S3FileSystem
    except ImportError:
        return None
    if options is None:
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:  # which Arrow itself does not look for
        options.setdefault("endpoint_override", endpoint)
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = _region_of(bucket)
    defaults = {"connect_timeout": _CONNECT_TIMEOUT, "request_timeout": _STALL_TIMEOUT}
    return S3FileSystem(**{**defaults, **options})


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
    """Where a bucket of Amazon's lies: a request to any other region is turned away."""
    known = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return known or _ask_region(bucket)


@lru_cache(maxsize=64)
def _ask_region(bucket: str) -> str | None:
    try:
        return str(pafs.resolve_s3_region(bucket))
    except OSError:  # no such bucket, or no way out: the first request will say so better
        return None

"""Digests of JSON documents, which show whether stored attributes are those that were written."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def json_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a JSON document, which does not depend on the order of its keys."""
    return hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()


def sealed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes with their digest."""
    values = {name: value for name, value in attributes.items() if name != "digest"}
    return {**values, "digest": json_digest(values)}

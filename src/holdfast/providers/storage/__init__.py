"""Store finished media, and check what a file is.

The store in a bucket is a module of its own, which needs the extra ``s3``.
"""

from holdfast.providers.storage.base import (
    BLOCK_BYTES,
    AssetCorrupt,
    AssetMissing,
    AssetReader,
    AssetStore,
    StoreFault,
    asset_key,
)
from holdfast.providers.storage.local import LocalStore

__all__ = [
    "BLOCK_BYTES", "AssetCorrupt", "AssetMissing", "AssetReader", "AssetStore", "LocalStore", "StoreFault",
    "asset_key",
]  # fmt: skip

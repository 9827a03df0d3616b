"""Storage: bytes in a folder or an object store, complete or absent."""

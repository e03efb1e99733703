"""Store finished media, and check what a file is.

The store in a bucket is a module of its own, which needs the extra ``s3``.
"""
